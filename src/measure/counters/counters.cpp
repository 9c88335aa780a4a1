#include "measure/counters/counters.hpp"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "machine/affinity.hpp"

namespace katt::bench {
namespace {

constexpr double uncounted = std::numeric_limits<double>::quiet_NaN();

/// Counters of the calling thread on any processor, in the group of `leader` (−1: a group of its own).
int open_event(const CounterEvent& event, int leader) {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = event.type;
  attributes.config = event.config;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  attributes.read_format =
      PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
  return static_cast<int>(
      syscall(SYS_perf_event_open, &attributes, 0, -1, leader, PERF_FLAG_FD_CLOEXEC));
}

std::string reason_of(int error) {
  switch (error) {
    case ENOENT:
    case ENODEV:
    case EOPNOTSUPP: return "the processor or the virtual machine has no counters";
    case ENOSYS: return "the kernel has no perf_event_open";
    case EACCES:
    case EPERM: {
      std::string level;
      std::ifstream("/proc/sys/kernel/perf_event_paranoid") >> level;
      return "the kernel refuses: perf_event_paranoid is " + (level.empty() ? "hidden" : level) +
             ", expected 2 or less, and no container that forbids perf_event_open";
    }
    default: return std::strerror(error);  // NOLINT(concurrency-mt-unsafe)
  }
}

/// The growth of the counters of a thread, scaled to all of its time; NaN when never counted.
struct Growth {
  double time_ns = 0;
  std::array<double, 3> values{};
};

Growth growth(const ThreadCounts& before, const ThreadCounts& after) {
  Growth grown{.time_ns = after.enabled_ns - before.enabled_ns};
  const double counted_ns = after.running_ns - before.running_ns;
  for (std::size_t i = 0; i < grown.values.size(); ++i) {
    const double difference = after.values[i] - before.values[i];
    if (grown.time_ns <= 0) grown.values[i] = 0 * difference;  // it slept; NaN stays NaN
    else grown.values[i] = counted_ns > 0 ? difference * (grown.time_ns / counted_ns) : uncounted;
  }
  return grown;
}

}  // namespace

const CounterEvents& hardware_events() {
  static constexpr CounterEvents events{
      CounterEvent{PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES},
      CounterEvent{PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS},
      CounterEvent{PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES}};
  return events;
}

RunCounts counts_between(std::span<const ThreadCounts> before, std::span<const ThreadCounts> after,
                         int runs) {
  if (before.empty() || before.size() != after.size() || runs < 1) return {};
  double time_ns = 0, cycles = 0, most = 0, instructions = 0, misses = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].thread == 0 || before[i].thread != after[i].thread) return {};
    const Growth grown = growth(before[i], after[i]);
    if (grown.values[0] != grown.values[0]) return {};
    time_ns += grown.time_ns;
    cycles += grown.values[0];
    most = std::max(most, grown.values[0]);
    instructions += grown.values[1];
    misses += grown.values[2];
  }
  const double each = 1.0 / runs;
  return {.ghz = time_ns > 0 ? cycles / time_ns : uncounted,
          .cycles = most * each,
          .instructions = instructions * each,
          .llc_misses = misses * each};
}

/// The counters of one thread.
class Counters::Group {
 public:
  Group() = default;
  ~Group() { close_all(); }
  Group(Group&& other) noexcept
      : thread_(std::exchange(other.thread_, 0)),
        files_(std::exchange(other.files_, {-1, -1, -1})) {}
  Group& operator=(Group&&) = delete;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Makes these the counters of the calling thread. Returns 0 or the error of the system.
  int open(const CounterEvents& events) {
    const int self = gettid();
    if (thread_ == self) return 0;
    close_all();
    for (std::size_t i = 0; i < events.size(); ++i) {
      files_[i] = open_event(events[i], files_[0]);
      // Without the first there is no group, and a table of files that is full serves nobody.
      if (files_[i] < 0 && (i == 0 || errno == EMFILE || errno == ENFILE)) {
        const int error = errno;
        close_all();
        return error;
      }
    }
    thread_ = self;
    return 0;
  }

  [[nodiscard]] ThreadCounts read() const {
    struct {
      std::uint64_t count, enabled_ns, running_ns;
      std::array<std::uint64_t, 3> values;
    } held{};
    if (thread_ == 0 || ::read(files_[0], &held, sizeof held) < 0) return {};
    ThreadCounts counts{.thread = thread_,
                        .enabled_ns = static_cast<double>(held.enabled_ns),
                        .running_ns = static_cast<double>(held.running_ns)};
    std::size_t next = 0;  // values of the events that were opened
    for (std::size_t i = 0; i < files_.size(); ++i) {
      counts.values[i] = files_[i] < 0 ? uncounted : static_cast<double>(held.values[next++]);
    }
    return counts;
  }

 private:
  void close_all() {
    for (int& file : files_) {
      if (file >= 0) ::close(file);
      file = -1;
    }
    thread_ = 0;
  }

  int thread_ = 0;
  std::array<int, 3> files_{-1, -1, -1};
};

Counters::Counters(int threads, const CounterEvents& events) : events_(events) {
  if (threads < 1) {
    refusal_ = "no threads of the host";
    return;
  }
  // One thread tells whether there are counters, before the others are asked.
  if (const int error = Group().open(events_); error != 0) {
    refusal_ = reason_of(error);
    return;
  }
  groups_.resize(static_cast<std::size_t>(threads));
  const auto first = read();
  if (std::ranges::any_of(first, [](const ThreadCounts& one) { return one.thread == 0; })) {
    groups_.clear();
    refusal_ = "the counters of " + std::to_string(threads) + " threads cannot be opened";
  }
}

Counters::~Counters() = default;

std::vector<ThreadCounts> Counters::read() {
  std::vector<ThreadCounts> counts(groups_.size());
  if (groups_.empty()) return counts;
  const auto read_own = [&](std::size_t thread) {
    if (groups_[thread].open(events_) == 0) counts[thread] = groups_[thread].read();
  };
  if (groups_.size() == 1) read_own(0);
  else on_each_thread(static_cast<int>(groups_.size()), read_own);
  return counts;
}

const std::string& counters_refusal() {
  static const std::string refusal = Counters(1).refusal();
  return refusal;
}

}  // namespace katt::bench
