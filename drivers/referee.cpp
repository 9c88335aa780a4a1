#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "core/text.hpp"
#include "drivers/options/command_line.hpp"
#include "drivers/runtime/claim.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/runtime.hpp"
#include "io/atomic_file.hpp"
#include "io/outputs.hpp"
#include "io/printable.hpp"
#include "plan/axes.hpp"
#include "plan/forecast.hpp"
#include "sweep/peer.hpp"
#include "sweep/referee/task.hpp"
#include "sweep/referee/verdict.hpp"
#include "sweep/sweep.hpp"

namespace katt::impl {
namespace {

/// Throws InputError when no case measures the baseline.
void check_baseline(const bench::RefereeTask& task, std::span<const bench::PlannedCase> plan) {
  if (task.baseline.empty()) return;
  std::vector<std::string> known;
  for (const bench::PlannedCase& planned : plan) {
    for (const Config& config : planned.configs) bench::add_once(known, config.variant);
  }
  std::erase(known, task.candidate);
  if (std::ranges::find(known, task.baseline) != known.end()) return;
  const std::string near = bench::suggestion(task.baseline, known);
  throw InputError(task.where + ": baseline " + io::impl::printable(task.baseline) +
                   ": is not measured; " + (near.empty() ? "" : near + " ") + "expected one of " +
                   bench::join(known, ", "));
}

/// The task, and the files that it names.
std::vector<io::NamedPath> inputs_of(const bench::RefereeTask& task,
                                     const std::filesystem::path& path) {
  std::vector<io::NamedPath> inputs{{"the task", path}, {"candidate", task.library}};
  const bench::Settings& settings = task.request.settings;
  for (const auto& [name, candidate] : settings.candidates) {
    inputs.push_back({"candidate", candidate.path});
  }
  for (const std::string& program : {settings.peer_program, settings.candidate_program}) {
    if (!program.empty()) inputs.push_back({"a program of the task", program});
  }
  return inputs;
}

}  // namespace

int referee_command(const Invocation& invocation) {
  CommandLine line(
      "katt referee",
      "Judge a kernel: katt referee TASK.json -o VERDICT.json. The task names the kernel, an "
      "operator with axes, what to compare with, and limits; the verdict is one JSON document");
  bool overwrite = false;
  bool json = false;
  line.positional("task", "task (JSON)", files({".json"}));
  line.option("-o,--output", "file to write the verdict to (default: standard output)",
              files({".json"}));
  line.option("--results", "result file (HDF5) to keep what was measured in", files({".h5"}));
  line.flag("--overwrite", overwrite, "replace the files of -o and --results");
  line.flag("--json", json, "print the verdict, too");
  line.example("katt referee TASK.json -o VERDICT.json",
               "exit status 0: accepted, 1: rejected, 3: undecided");
  line.example("katt referee TASK.json --results RESULT.h5 --quiet",
               "the verdict on standard output alone, and every row in a file");
  if (!line.parse(invocation)) return 0;
  const auto& path = line.text("task");
  if (!path)
    throw InputError("katt referee: the task is missing: katt referee TASK.json -o VERDICT.json");
  bench::RefereeTask task = bench::read_task(*path, invocation.registry);
  bench::check_peers(task.request);
  bench::check_candidates(task.request);
  const auto& output = line.text("-o");
  const auto& results = line.text("--results");
  std::vector<io::NamedPath> targets;
  if (output) targets.push_back({"-o", *output});
  if (results) targets.push_back({"--results", *results});
  const io::Outputs outputs = claim_outputs(targets, inputs_of(task, *path), overwrite);

  const Runtime runtime(bench::most_threads(task.request.entries), std::nullopt);
  const auto plan = bench::plan_cases(task.request.entries, task.request.settings.seed);
  bench::check_memory(plan);
  check_baseline(task, plan);
  bench::Verdict verdict(task);
  bench::SweepOptions options;
  options.command = invocation.command;
  options.output = results.value_or("");
  options.overwrite = overwrite;
  options.finished = [&](const bench::PlannedCase& planned,
                         std::span<const bench::RowResult> rows) { verdict.add(planned, rows); };
  tell_threads(bench::most_threads(task.request.entries));
  bench::Progress progress(messages(), is_verbose());
  const bench::SweepSummary summary =
      bench::run_sweep(invocation.registry, task.request, plan, options, progress,
                       stop_on_signals("stopping after this kernel"));
  const bench::CandidateFile& file = task.request.settings.candidates.at(task.candidate);
  const std::string document =
      verdict.json(summary.interrupted, summary.elapsed_s, file.sha256, file.about) + "\n";
  if (output) io::write_file(*output, document);
  if (!output || json) std::fputs(document.c_str(), stdout);
  const std::string status = verdict.status(summary.interrupted);
  progress.note(task.candidate + ": " + status);
  for (const std::string& reason : verdict.reasons()) progress.note("    " + reason);
  if (summary.interrupted) return 130;
  return status == "accepted" ? 0 : status == "undecided" ? 3 : 1;
}

}  // namespace katt::impl
