#pragma once

#include <chrono>
#include <cstdio>
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

  /// `plan`: the cases that will run; it names the axes that vary among them.
  void begin(std::span<const PlannedCase> plan);
  void finished(const PlannedCase& planned, std::span<const RowResult> rows);
  void note(const std::string& line) const;

 private:
  [[nodiscard]] std::string describe(const PlannedCase& planned) const;

  std::FILE* stream_;
  std::size_t cases_ = 0, done_ = 0;
  std::size_t configs_left_ = 0, configs_done_ = 0;
  std::set<std::string> varying_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace katt::bench
