#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "measure/ceilings.hpp"
#include "measure/measure.hpp"
#include "plan/plan.hpp"
#include "plan/shard.hpp"
#include "plan/sweep_file.hpp"
#include "record/results.hpp"
#include "sweep/progress.hpp"

namespace katt::bench {

struct SweepOptions {
  std::filesystem::path output;  ///< empty: the rows are kept in memory, for `finished`
  bool resume = false;
  bool overwrite = false;
  std::string command;  ///< as typed, for the provenance
  bool measure_ceilings = true;
  Shard shard{};  ///< the part of the plan to run
  /// Called with the rows of a case once they are in the file; optional.
  std::function<void(const PlannedCase&, std::span<const RowResult>)> finished{};
};

struct SweepSummary {
  std::string run;  ///< empty when nothing was left to do
  int ok = 0, skipped = 0;
  int failed = 0, suspect = 0;  ///< with those among the rows that the file already held
  int present = 0;              ///< rows that the file already held
  bool interrupted = false;
  double elapsed_s = 0;

  /// The exit status of the program.
  [[nodiscard]] int status() const { return interrupted ? 130 : failed + suspect > 0 ? 1 : 0; }
};

/// "done after 40 s: 12 ok, 1 skipped, 0 failed; results/demo.h5", and after an interruption what
/// the file keeps.
[[nodiscard]] std::string summary_line(
    const SweepSummary& summary, const std::filesystem::path& output,
    const std::string& kept = " keeps what is done, --resume goes on");

/// Throws InputError when the output exists without resume or overwrite, or when no output is
/// named.
void check_output(const SweepOptions& options);

/// Runs a plan, or a part of it, and records it: each case's rows are committed as soon as it is
/// finished. A failed or refused row is recorded with its reason, and the sweep continues. Kokkos
/// must be initialised and the memory tracker installed.
[[nodiscard]] SweepSummary run_sweep(const Registry& registry, const SweepRequest& request,
                                     std::span<const PlannedCase> plan, const SweepOptions& options,
                                     Progress& progress, const StopFlag& stop);

}  // namespace katt::bench
