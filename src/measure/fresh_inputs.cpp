#include "measure/fresh_inputs.hpp"

#include <algorithm>
#include <set>

#include "core/stopwatch.hpp"

namespace katt::bench {
namespace {

std::mt19937_64 unknown_generator() {
  std::random_device device;
  std::seed_seq seed{device(), device(), device(), device()};
  return std::mt19937_64(seed);
}

}  // namespace

FreshInputs::FreshInputs(int rounds) : random_(unknown_generator()) {
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
  const bool is_cheap = round > first_change_ && change_all_s_ <= round_s_;
  return change(contenders, round == first_change_ || is_cheap ||
                                (round > first_change_ && chance(1.0 / 16, change_all_s_)));
}

bool FreshInputs::change(std::span<Contender* const> contenders, bool all) {
  const Stopwatch watch;
  std::set<Case*> cases;
  for (const Contender* contender : contenders) cases.insert(contender->inputs);
  cases.erase(nullptr);
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
  round_s_ = round_s;
  if (!has_cases_) return false;
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
