#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "measure/measure.hpp"

namespace katt::bench {

/// New inputs between the rounds of a measurement, so that an answer that a candidate has kept is
/// wrong, and the rounds whose outputs are compared. The numbers are those of the system: no
/// candidate can know them. Nothing happens for candidates whose Contender names no case.
///
///   every round            some rows of every input that nothing is derived of
///   the second or third,   all inputs and what is derived of them, so that a kernel that computes
///   and later ones where   the changed rows alone gains nothing
///   that is no longer than
///   a round, else a few; in
///   a case with a kernel of
///   a user, every one
///   the first round of     outputs of every candidate are compared, on rows that are chosen again
///   both kinds, the last
///   one, and random ones
class FreshInputs {
 public:
  /// `rounds`: the first ones, among which are one with all inputs and one that is compared.
  /// Ranks that measure in step decide alike by `largest`, and all of them call each function.
  explicit FreshInputs(int rounds, Largest largest = {});

  /// Before a round. True when an input has changed.
  bool change(std::span<Contender* const> contenders, int round);
  /// All inputs of all cases, for the last comparison.
  void change_all(std::span<Contender* const> contenders) { (void)change(contenders, true); }

  /// After a round of so many seconds: true when its outputs are to be compared. Decided now, so
  /// that nobody can prepare for it.
  [[nodiscard]] bool compares(int round, double round_s);
  /// True when the outputs of the last round have not been compared.
  [[nodiscard]] bool owes_comparison() const { return has_cases_ && !is_compared_; }
  /// Tells the seconds of a comparison.
  void compared(double seconds);
  /// Tells the seconds in which a candidate has taken over the changes.
  void taken(double seconds);
  /// A seed for the choice of rows.
  [[nodiscard]] std::uint64_t seed() { return random_(); }

  /// Seconds spent on changes and comparisons, which no budget counts.
  [[nodiscard]] double seconds() const { return seconds_; }

 private:
  [[nodiscard]] bool change(std::span<Contender* const> contenders, bool all);
  /// True in a share of the rounds, so that what takes `cost_s` takes a tenth of their time.
  [[nodiscard]] bool chance(double most, double cost_s);
  /// Seconds of this process, or of the slowest rank.
  [[nodiscard]] double agreed(double seconds) const {
    return largest_ ? largest_(seconds) : seconds;
  }

  Largest largest_;
  std::mt19937_64 random_;
  int first_change_, first_comparison_;
  bool has_cases_ = false;
  bool all_changed_ = false;                           ///< in this round
  bool is_compared_ = false;                           ///< this round
  bool part_compared_ = false, all_compared_ = false;  ///< a round of this kind
  double round_s_ = 0, comparison_s_ = 0, change_all_s_ = 0;
  double seconds_ = 0;
};

}  // namespace katt::bench
