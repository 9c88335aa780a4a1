#include "sweep/sweep.hpp"

#include <cstdio>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "record/provenance.hpp"
#include "sweep/runner.hpp"
#include "sweep/sweep_record.hpp"

namespace katt::bench {

namespace {

/// ", 1 failed", or "" for no rows.
std::string with_status(int rows, const char* status) {
  return rows > 0 ? ", " + std::to_string(rows) + " " + status : "";
}

}  // namespace

std::string summary_line(const SweepSummary& summary, const std::filesystem::path& output,
                         const std::string& kept) {
  if (summary.run.empty()) {
    return "nothing left to do: " + output.string() + " holds all " +
           std::to_string(summary.present) + " rows" + with_status(summary.failed, "failed") +
           with_status(summary.suspect, "suspect");
  }
  return std::string(summary.interrupted ? "interrupted" : "done") + " after " +
         human_duration(summary.elapsed_s) + ": " + std::to_string(summary.ok) + " ok, " +
         std::to_string(summary.skipped) + " skipped, " + std::to_string(summary.failed) +
         " failed" + with_status(summary.suspect, "suspect") + "; " + output.string() +
         (summary.interrupted ? kept : "");
}

void check_output(const SweepOptions& options) {
  if (options.output.empty()) {
    throw InputError("-o is missing: expected the result file to write, e.g. -o results/NAME.h5");
  }
  if (options.resume && options.overwrite) {
    throw InputError("--resume and --overwrite exclude each other");
  }
  std::error_code error;
  if (!options.resume && !options.overwrite && std::filesystem::exists(options.output, error)) {
    throw InputError("-o " + options.output.string() +
                     ": exists; expected a new file, --resume or --overwrite");
  }
}

SweepSummary run_sweep(const Registry& registry, const SweepRequest& request,
                       std::span<const PlannedCase> plan, const SweepOptions& options,
                       Progress& progress, const StopFlag& stop) {
  SweepRecord record(registry, request, plan, options, progress);
  if (record.tasks().empty()) return record.summary();
  const auto left = cases_of(record.tasks());
  std::vector<io::CeilingRow> ceilings;
  if (options.measure_ceilings) {
    progress.doing("measuring the ceilings of this machine");
    ceilings = measure_ceilings(left, request.settings.bind, stop);
  }
  const std::string run =
      record.begin_run(provenance(request, options.command, backends_of(left)), ceilings);
  CaseRunner runner(
      request.settings, std::move(ceilings), stop, {},
      [&](const PlannedCase& planned, const std::string& what) { progress.doing(planned, what); });
  bool interrupted = false;
  for (const auto& group : groups_of(std::span(record.tasks()))) {
    const auto results = stop ? std::vector<CaseRunner::Rows>{} : runner.run(cases_of(group));
    interrupted = results.empty();
    if (interrupted) break;
    record.add(group, results, run);
  }
  record.end_run(run, interrupted, runner.about_peers());
  return record.summary();
}

}  // namespace katt::bench
