#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include "machine/sensors.hpp"
#include "measure/counters/counters.hpp"

namespace katt::bench {

/// The machine's effort in a run of a candidate, by counters of the processor; NaN where nobody
/// counts.
struct Effort {
  std::vector<double> cycles{};  ///< of the busiest thread, one a round; empty: not counted
  double ghz = std::numeric_limits<double>::quiet_NaN();           ///< medians over the rounds …
  double instructions = std::numeric_limits<double>::quiet_NaN();  ///< … of all threads
  double llc_misses = std::numeric_limits<double>::quiet_NaN();
  double joules = std::numeric_limits<double>::quiet_NaN();  ///< of the processor packages, a mean
  double throttled =
      std::numeric_limits<double>::quiet_NaN();  ///< 1: slowed down for heat meanwhile
};

/// The samples of a candidate as a Meter has seen them.
struct EffortLog {
  std::vector<RunCounts> counts{};  ///< one a round
  double joules = 0;                ///< of all samples
  double seconds = 0;               ///< of all samples
  double runs = 0;
  double throttled = std::numeric_limits<double>::quiet_NaN();

  [[nodiscard]] Effort summary() const;
};

/// Reads the counters of the machine around samples, outside of their time.
class Meter {
 public:
  /// Counts the first `threads` threads of OpenMP's team.
  explicit Meter(int threads, const CounterEvents& events = hardware_events(),
                 std::filesystem::path sys = "/sys");

  void start();
  /// Adds what happened since start() in a sample of `runs` runs that took `seconds` each.
  void stop(EffortLog& log, double seconds, int runs);
  /// 1 when a processor was slowed down for heat since the meter was made, else 0; NaN when
  /// unknown.
  [[nodiscard]] double throttled() const;

 private:
  Counters counters_;
  EnergyCounters energy_;
  std::filesystem::path sys_;
  std::optional<std::uint64_t> throttled_before_;
  std::vector<ThreadCounts> counts_before_;
  EnergyCounters::Reading energy_before_;
};

}  // namespace katt::bench
