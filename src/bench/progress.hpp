#pragma once

#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <string>

#include "bench/plan.hpp"
#include "bench/results.hpp"

namespace katt::bench {

/// One line a finished case on stderr, readable on a terminal and in a log:
///   [ 12/140] attention f32 seq_q=2048 causal=1: flash 64x64 3.21 ms ±1 %, 2.9x naive; left 3 min
class Progress {
 public:
  /// Writes to `stream`; nothing where it is null.
  explicit Progress(std::FILE* stream) : stream_(stream) {}

  /// `plan`: the cases that will run. A line names the axes that vary among the cases of its label.
  void begin(std::span<const PlannedCase> plan);
  void finished(const PlannedCase& planned, std::span<const RowResult> rows);
  void note(const std::string& line) const;

 private:
  static std::string group_of(const PlannedCase& planned);
  [[nodiscard]] std::string describe(const PlannedCase& planned) const;

  std::FILE* stream_;
  std::size_t cases_ = 0, done_ = 0;
  std::size_t configs_left_ = 0, configs_done_ = 0;
  std::map<std::string, std::set<std::string>> varying_;  ///< axes, by operator and label
  std::chrono::steady_clock::time_point start_;
};

}  // namespace katt::bench
