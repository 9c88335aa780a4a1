#pragma once

#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <string>

#include "core/stopwatch.hpp"
#include "machine/machine.hpp"
#include "plan/plan.hpp"
#include "record/results.hpp"
#include "sweep/activity.hpp"

namespace katt::bench {

/// The output of a sweep on stderr, readable on a terminal and in a log. It prints one line a
/// finished case:
///   [ 12/140] attention f32 seq_q=2048 causal=1: flash 64x64 3.21 ms ±1 %, 2.9x naive; left 3 min
/// the reason of a skipped row, the first time that it occurs; and activities that take long. A
/// verbose one prints every row of a case below its line.
class Progress {
 public:
  /// Writes to `stream`; writes nothing when it is null.
  explicit Progress(std::FILE* stream, bool is_verbose = false)
      : stream_(stream), is_verbose_(is_verbose), activity_(stream) {}

  /// `plan`: the cases that will run, and the approximate seconds. A line names the axes that vary
  /// among the cases of its label.
  void begin(std::span<const PlannedCase> plan, double seconds);
  /// Prints the current activity, for a case or for none.
  void doing(const std::string& what);
  void doing(const PlannedCase& planned, const std::string& what);
  void finished(const PlannedCase& planned, std::span<const RowResult> rows);
  void note(const std::string& line);

 private:
  static std::string group_of(const PlannedCase& planned);
  [[nodiscard]] std::string describe(const PlannedCase& planned) const;
  void tell_reasons(std::span<const RowResult> rows);
  void tell_rows(std::span<const RowResult> rows);

  std::FILE* stream_;
  bool is_verbose_;
  Activity activity_;
  std::set<std::string> told_;  ///< reasons of skipped rows
  ProcessorTime before_;        ///< the running case
  std::size_t cases_ = 0, done_ = 0;
  std::size_t configs_left_ = 0, configs_done_ = 0;
  std::map<std::string, std::set<std::string>> varying_;  ///< axes, by operator and label
  Stopwatch watch_;
};

}  // namespace katt::bench
