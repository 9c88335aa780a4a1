#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

/// Counters of the processor, read through Linux' perf_event_open (man 2 perf_event_open).
namespace katt::bench {

/// An event as perf_event_attr names it.
struct CounterEvent {
  std::uint32_t type = 0;
  std::uint64_t config = 0;
};

/// Three events that are counted together. The first one must exist; NaN stands for another one
/// that the processor lacks.
using CounterEvents = std::array<CounterEvent, 3>;

/// Cycles, instructions, misses of the last cache.
[[nodiscard]] const CounterEvents& hardware_events();

/// Values of a thread's counters. A processor with too few counters takes turns: then
/// running_ns is less than enabled_ns.
struct ThreadCounts {
  int thread = 0;         ///< the system's number; 0: the thread cannot be counted
  double enabled_ns = 0;  ///< time for which the thread was on a processor
  double running_ns = 0;  ///< time of it in which the events were counted
  std::array<double, 3> values{};
};

/// Counts of a run, between two readings. NaN: not counted.
struct RunCounts {
  double ghz =
      std::numeric_limits<double>::quiet_NaN();  ///< cycles by time on a processor, of all threads
  double cycles = std::numeric_limits<double>::quiet_NaN();        ///< of the thread with the most
  double instructions = std::numeric_limits<double>::quiet_NaN();  ///< of all threads
  double llc_misses = std::numeric_limits<double>::quiet_NaN();    ///< of all threads
};

/// The counts of one of `runs` equal runs between two readings of the same threads, scaled up where
/// the counters took turns. NaN when a thread was replaced between the readings, and when its
/// events were never counted.
[[nodiscard]] RunCounts counts_between(std::span<const ThreadCounts> before,
                                       std::span<const ThreadCounts> after, int runs);

/// The counters of OpenMP's threads while the object lives. Counts what happens in user mode,
/// which is what a process may see with perf_event_paranoid at 2.
class Counters {
 public:
  /// Opens the counters of the first `threads` threads of OpenMP's team; 0 counts nothing.
  explicit Counters(int threads, const CounterEvents& events = hardware_events());
  ~Counters();
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  /// The reason why nothing is counted; "" when the threads are.
  [[nodiscard]] const std::string& refusal() const { return refusal_; }

  /// Values of all counters. Each thread reads its own, in about a microsecond; a thread that
  /// OpenMP has started since gets counters first. Empty when nothing is counted.
  [[nodiscard]] std::vector<ThreadCounts> read();

 private:
  class Group;
  CounterEvents events_;
  std::vector<Group> groups_;
  std::string refusal_;
};

/// The reason why this process cannot count cycles; "" when it can.
[[nodiscard]] const std::string& counters_refusal();

}  // namespace katt::bench
