#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "measure/statistics.hpp"

/// The rule of a race between the settings of a variant, which are measured in the same rounds:
///
///   look after 3, 5, 7, 11, 17, 26 … rounds, each time half as many again
///     leader = the setting of the lowest median
///     for each other setting: interval = paired_ratio(setting, leader), 95 %
///       lo > 1                     it is slower, and leaves
///       lo ≥ 1 / 1.02              it is not faster by more than 2 %, and leaves from 7 rounds on
///   until the leader is alone
///
/// Successive elimination (Even-Dar, Mannor & Mansour, Journal of Machine Learning Research 7,
/// 2006; of algorithms: F-Race, Birattari et al., GECCO 2002) by intervals of ratios of the same
/// round. One comparison errs with 2.5 %. There are many, so looks are few, and before 7 rounds,
/// where intervals assume normal noise, only clear differences count. Replays of recorded spaces
/// tell how often the winner is wrong in all (docs/tuning.md, "The race").
namespace katt::bench {

struct RaceRule {
  double tolerance = 0.02;   ///< relative difference of two times that does not matter
  int first_look = 3;        ///< rounds before the first look
  double look_growth = 1.5;  ///< factor of the rounds from look to look
  int min_rounds = 7;        ///< rounds of settings that leave though they are not slower, or win
};

/// Why a setting leaves a race.
enum class Leaving { slower, not_faster };

/// A setting that leaves.
struct Departure {
  std::size_t id = 0;
  std::size_t leader = 0;
  Leaving why = Leaving::slower;
  Estimate ratio{};  ///< its time / the leader's, of the same rounds
};

/// The race of the settings of one variant at one point. It knows no clock: the caller measures the
/// settings that are still in, and shows the samples after every round.
class Race {
 public:
  /// A setting, by any number that the caller knows it by. `is_default`: the variant's own, which
  /// leaves only when it is slower, after `min_rounds`: users read how much is gained over it.
  struct Member {
    std::size_t id = 0;
    bool is_default = false;
  };
  /// The samples of a member, one of every round so far; empty when it failed.
  using Samples = std::function<std::span<const double>(std::size_t id)>;

  explicit Race(std::vector<Member> members, RaceRule rule = {});

  /// Looks at the samples after a round; most rounds change nothing. Returns the settings that
  /// leave. Members that failed are forgotten.
  [[nodiscard]] std::vector<Departure> after_round(const Samples& samples);

  /// True when the winner is known, and when nobody is left.
  [[nodiscard]] bool is_over() const { return is_over_; }
  /// The settings that are still in.
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }

 private:
  std::vector<Member> members_;
  RaceRule rule_;
  int next_look_;
  bool is_over_ = false;
};

/// True when the default stays the choice although another setting is the fastest: it is not shown
/// to be slower, and its median is at most half of the tolerance above. `ratio`: its time / the
/// fastest's.
[[nodiscard]] bool default_stays(const Estimate& ratio, const RaceRule& rule = {});

/// The choice among the settings that are still in a race: the one of the lowest median, or the
/// default, if it stays. Throws std::invalid_argument without members.
[[nodiscard]] std::size_t winner_of(std::span<const Race::Member> members,
                                    const Race::Samples& samples, const RaceRule& rule = {});

}  // namespace katt::bench
