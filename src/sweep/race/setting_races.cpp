#include "sweep/race/setting_races.hpp"

#include <algorithm>
#include <cstdio>

namespace katt::bench {
namespace {

/// "1.120x the time of 64x64 after 5 rounds"; of a setting that is not slower also what is known of
/// it.
std::string text_of(const Departure& departure, const std::string& leader, std::size_t rounds) {
  char text[96];
  std::snprintf(text, sizeof text, "left the race: %.3fx the time of %s after %zu rounds%s",
                departure.ratio.median, leader.c_str(), rounds,
                departure.why == Leaving::slower ? "" : ", not faster by 2 %");
  return text;
}

}  // namespace

void SettingRaces::add(const PlannedCase& planned, std::span<const std::size_t> indices,
                       std::size_t first) {
  names_.resize(std::max(names_.size(), first + indices.size()));
  for (const VariantInfo& info : planned.op->variants(planned.point.backend, planned.point.pass)) {
    if (info.settings.empty()) continue;
    const Setting usual = planned.op->resolve(planned.point, {info.name, {}}).setting;
    std::vector<Race::Member> members;
    for (std::size_t k = 0; k < indices.size(); ++k) {
      const Config& config = planned.configs[indices[k]];
      if (config.variant != info.name || planned.is_peer(config)) continue;
      const Setting setting = planned.op->resolve(planned.point, config).setting;
      names_[first + k] = to_text(setting);
      members.push_back({.id = first + k, .is_default = setting == usual});
    }
    if (!members.empty()) races_.emplace_back(std::move(members), rule_);
  }
}

bool SettingRaces::after_round(std::span<Contender> contenders) {
  const auto samples = [&](std::size_t id) -> std::span<const double> {
    const Contender& contender = contenders[id];
    if (!contender.candidate || !contender.measured.status.is_ok()) return {};
    return contender.measured.samples_s;
  };
  bool are_over = true;
  for (Race& race : races_) {
    for (const Departure& departure : race.after_round(samples)) {
      contenders[departure.id].left =
          text_of(departure, names_[departure.leader], samples(departure.id).size());
    }
    are_over = are_over && race.is_over();
  }
  return are_over;
}

}  // namespace katt::bench
