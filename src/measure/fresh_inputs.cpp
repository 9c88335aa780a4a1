#include "measure/fresh_inputs.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/stopwatch.hpp"

namespace katt::bench {
namespace {

/// Ranks take the largest of their numbers, which is the same on all of them.
std::mt19937_64 unknown_generator(const Largest& largest) {
  std::random_device device;
  std::array<std::uint32_t, 4> words{};
  for (std::uint32_t& word : words) {
    word = device();
    if (largest) word = static_cast<std::uint32_t>(largest(word));
  }
  std::seed_seq seed(words.begin(), words.end());
  return std::mt19937_64(seed);
}

}  // namespace

FreshInputs::FreshInputs(int rounds, Largest largest)
    : largest_(std::move(largest)), random_(unknown_generator(largest_)) {
  const auto any = [&] {
    return static_cast<int>(random_() % static_cast<std::uint64_t>(std::max(rounds, 1)));
  };
  first_change_ = std::min(1 + any() % 2, std::max(rounds, 1) - 1);
  first_comparison_ = any();
}

bool FreshInputs::chance(double most, double cost_s) {
  const double share = cost_s > 0 ? std::min(most, 0.1 * round_s_ / cost_s) : most;
  return std::bernoulli_distribution(share)(random_);
}

bool FreshInputs::change(std::span<Contender* const> contenders, int round) {
  change_all_s_ = agreed(change_all_s_);
  // A kernel of a user could look for the rows that have changed: there are no such rounds.
  const bool is_foreign = std::ranges::any_of(contenders, [](const Contender* contender) {
    return contender->candidate->process() != 0 && contender->candidate->runs_once();
  });
  const bool is_cheap = round > first_change_ && (is_foreign || change_all_s_ <= round_s_);
  return change(contenders, round == first_change_ || is_cheap ||
                                (round > first_change_ && chance(1.0 / 16, change_all_s_)));
}

bool FreshInputs::change(std::span<Contender* const> contenders, bool all) {
  const Stopwatch watch;
  std::vector<Case*> cases;  // in an order that all ranks have
  for (const Contender* contender : contenders) {
    Case* const inputs = contender->inputs;
    if (inputs != nullptr && std::ranges::find(cases, inputs) == cases.end()) {
      cases.push_back(inputs);
    }
  }
  has_cases_ = !cases.empty();
  bool any = false;
  for (Case* const inputs : cases) {
    const std::vector<InputChange> changes = inputs->change(random_(), all);
    if (changes.empty()) continue;
    any = true;
    for (Contender* const contender : contenders) {
      if (contender->inputs == inputs) contender->candidate->inputs_changed(changes, all);
    }
  }
  all_changed_ = all && any;
  if (all_changed_) change_all_s_ = watch.seconds();
  seconds_ += watch.seconds();
  return any;
}

bool FreshInputs::compares(int round, double round_s) {
  if (!has_cases_) return false;
  round_s_ = agreed(round_s);
  comparison_s_ = agreed(comparison_s_);
  // All inputs are new to what remembers; in a round of the other kind some are not.
  bool& kind = all_changed_ ? all_compared_ : part_compared_;
  const bool first_of_kind = !kind;
  kind = true;
  is_compared_ =
      first_of_kind || round == first_comparison_ || (round > 0 && chance(0.25, comparison_s_));
  return is_compared_;
}

void FreshInputs::taken(double seconds) {
  if (all_changed_) change_all_s_ += seconds;
  seconds_ += seconds;
}

void FreshInputs::compared(double seconds) {
  comparison_s_ = seconds;
  seconds_ += seconds;
}

}  // namespace katt::bench
