#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "measure/measure.hpp"
#include "measure/race.hpp"
#include "plan/plan.hpp"

namespace katt::bench {

/// The races of a group of cases that is measured together: the settings of every variant at every
/// point race each other.
class SettingRaces {
 public:
  explicit SettingRaces(const RaceRule& rule = {}) : rule_(rule) {}

  /// Adds the races of a case. `indices`: its configurations, whose contenders follow each other
  /// from number `first` of the group.
  void add(const PlannedCase& planned, std::span<const std::size_t> indices, std::size_t first);
  [[nodiscard]] bool empty() const { return races_.empty(); }

  /// Looks at the contenders after a round, and notes in `left` why a setting leaves. True when all
  /// races are over.
  [[nodiscard]] bool after_round(std::span<Contender> contenders);

 private:
  RaceRule rule_;
  std::vector<Race> races_;
  std::vector<std::string> names_;  ///< settings, by the number of their contender
};

}  // namespace katt::bench
