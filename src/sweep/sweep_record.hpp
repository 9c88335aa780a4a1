#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/stopwatch.hpp"
#include "io/hdf5/result_file.hpp"
#include "plan/shard.hpp"
#include "sweep/progress.hpp"
#include "sweep/sweep.hpp"

namespace katt::bench {

/// The result file of a sweep while it is written: the remaining work, the runs of the machines
/// that do it, and the rows of each case as soon as it is finished. The file is whole at every
/// instant.
class SweepRecord {
 public:
  /// Opens the file, or plans a new one, for one part of a plan. Throws InputError when it cannot
  /// be written or continued.
  SweepRecord(const Registry& registry, const SweepRequest& request,
              std::span<const PlannedCase> plan, const SweepOptions& options, Progress& progress);

  /// The work that the file does not hold yet: of a group of paired points all or nothing.
  [[nodiscard]] const std::vector<Task>& tasks() const { return tasks_; }

  /// Starts the run of a machine and returns its name. `provenance` is that machine's own.
  std::string begin_run(io::Attributes provenance, const std::vector<io::CeilingRow>& ceilings);
  /// Adds the rows of each case of a group, with the points as the machine of the run measured
  /// them.
  void add(std::span<const Task> group, std::span<const std::vector<RowResult>> results,
           const std::string& run);
  /// Ends a run; `peers` is its peers' description of themselves.
  void end_run(const std::string& run, bool interrupted, const std::string& peers);
  /// Puts all rows of a sweep on several ranks into the order of the plan.
  void sort_rows();

  [[nodiscard]] const SweepSummary& summary() const { return summary_; }

 private:
  void count(const RowResult& result);

  Stopwatch watch_;
  const SweepRequest& request_;
  const SweepOptions& options_;
  Progress& progress_;
  std::vector<io::Column> columns_;
  io::ResultFile file_;
  std::size_t held_ = 0;  ///< rows of earlier programs
  Part part_;
  std::vector<Task> tasks_;
  SweepSummary summary_;
};

/// The backends of a plan, each once.
[[nodiscard]] std::vector<Backend> backends_of(std::span<const PlannedCase> plan);

}  // namespace katt::bench
