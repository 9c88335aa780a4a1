#include "machine/sensors.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>

namespace katt::bench {
namespace {

std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

std::string word_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

/// True for "intel-rapl:0", a zone of its own, not for a part of one such as "intel-rapl:0:1". AMD's
/// processors have these names, too.
bool is_whole_zone(std::string_view name) {
  constexpr std::string_view prefix = "intel-rapl:";
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string_view::npos;
}

}  // namespace

EnergyCounters::EnergyCounters(const std::filesystem::path& sys) {
  const std::filesystem::path folder = sys / "class/powercap";
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    // Besides packages there is "psys", the whole platform, which holds them.
    if (!is_whole_zone(entry->path().filename().string()) ||
        !word_in(entry->path() / "name").starts_with("package")) {
      continue;
    }
    const std::filesystem::path counter = entry->path() / "energy_uj";
    if (!number_in(counter)) {
      refusal_ = counter.string() + " cannot be read (only root may, on most systems)";
      zones_.clear();
      return;
    }
    zones_.push_back({.counter = counter,
                      .range = number_in(entry->path() / "max_energy_range_uj").value_or(0)});
  }
  if (zones_.empty()) refusal_ = folder.string() + " has no RAPL";
}

EnergyCounters::Reading EnergyCounters::read() const {
  Reading reading;
  for (const Zone& zone : zones_) {
    const auto value = number_in(zone.counter);
    if (!value) return {};
    reading.push_back(*value);
  }
  return reading;
}

double EnergyCounters::joules_between(const Reading& before, const Reading& after) const {
  if (zones_.empty() || before.size() != zones_.size() || after.size() != zones_.size()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  double joules = 0;
  for (std::size_t i = 0; i < zones_.size(); ++i) {
    const std::uint64_t wrapped = after[i] < before[i] ? zones_[i].range : 0;
    if (after[i] + wrapped < before[i]) return std::numeric_limits<double>::quiet_NaN();
    joules += static_cast<double>(after[i] + wrapped - before[i]) * 1e-6;
  }
  return joules;
}

std::optional<std::uint64_t> throttle_count(const std::vector<int>& processors,
                                            const std::filesystem::path& sys) {
  std::optional<std::uint64_t> sum;
  for (const int processor : processors) {
    const std::filesystem::path folder =
        sys / "devices/system/cpu" / ("cpu" + std::to_string(processor)) / "thermal_throttle";
    for (const char* name : {"core_throttle_count", "package_throttle_count"}) {
      if (const auto count = number_in(folder / name)) sum = sum.value_or(0) + *count;
    }
  }
  return sum;
}

}  // namespace katt::bench
