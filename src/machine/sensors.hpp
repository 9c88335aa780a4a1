#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Energy and throttling of the processors, as Linux tells them in its sysfs.
namespace katt::bench {

/// The energy counters of the processor packages (RAPL; Linux,
/// Documentation/power/powercap/powercap.rst).
class EnergyCounters {
 public:
  /// `sys`: the root of the sysfs.
  explicit EnergyCounters(const std::filesystem::path& sys = "/sys");

  /// The reason why energy cannot be read; "" when it can.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

  /// The counter of each package in µJ; nothing when one cannot be read.
  using Reading = std::vector<std::uint64_t>;
  [[nodiscard]] Reading read() const;

  /// Joules of all packages between two readings. A counter may have wrapped around once. NaN
  /// without a reading.
  [[nodiscard]] double joules_between(const Reading& before, const Reading& after) const;

 private:
  struct Zone {
    std::filesystem::path counter;
    std::uint64_t range = 0;  ///< the counter begins again behind this value
  };
  std::vector<Zone> zones_;
  std::string refusal_;
};

/// How often these processors and their packages have been slowed down for heat since the start of
/// the system, summed; nothing where the system does not count it.
[[nodiscard]] std::optional<std::uint64_t> throttle_count(
    const std::vector<int>& processors, const std::filesystem::path& sys = "/sys");

}  // namespace katt::bench
