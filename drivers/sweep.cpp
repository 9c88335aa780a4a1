#include "sweep/sweep.hpp"

#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text.hpp"
#include "drivers/options/command_line.hpp"
#include "drivers/options/measure_options.hpp"
#include "drivers/runtime/blas_kernels.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/runtime.hpp"
#include "drivers/summaries.hpp"
#include "io/outputs.hpp"
#include "io/printable.hpp"
#include "io/safetensors.hpp"
#include "machine/affinity.hpp"
#include "plan/axes.hpp"
#include "plan/forecast.hpp"
#include "plan/tuning.hpp"
#include "process/sha256.hpp"
#include "process/watch.hpp"
#include "ranks/communicator.hpp"
#include "sweep/sweep_ranks.hpp"
#include "sweep/sweep_together.hpp"

namespace katt::impl {
namespace {

/// The tuning file for --tile auto; empty when the user's folder is unknown.
std::optional<std::filesystem::path> tuning_path(const std::optional<std::string>& option) {
  if (!option) return bench::usual_tuning_file();
  std::error_code error;
  if (!std::filesystem::exists(*option, error)) {
    throw InputError("--tuning " + *option + ": " +
                     (error ? "cannot be read: " + error.message() : "no such file") +
                     "; expected one that katt tune wrote");
  }
  return *option;
}

void print(const bench::Outlook& outlook, bool json) {
  if (json) {
    std::printf("%s\n", bench::outlook_json(outlook).c_str());
    return;
  }
  for (const std::string& line : outlook.lines) {
    std::printf("%s\n", io::impl::escaped(line).c_str());
  }
  std::printf("%s, %s, of which %zu cannot run here; %s of memory, at most about %s\n",
              bench::counted_text(outlook.points, "point").c_str(),
              bench::counted_text(outlook.rows, "row").c_str(), outlook.skipped,
              bench::human_bytes(static_cast<double>(outlook.memory_bytes)).c_str(),
              bench::human_duration(outlook.seconds).c_str());
}

}  // namespace

int sweep_command(const Invocation& invocation) {
  CommandLine line(
      "katt sweep",
      "Measure an operator over many points: katt sweep OP | FILE.toml. Under mpirun rank 0 hands "
      "them out, one rank a node measures; operators of several ranks are measured by all "
      "together");
  bench::SweepRequest request;
  bench::SweepOptions options;
  bool json = false;
  bool profile = false;
  bool isolate = false;
  bool dry_run = false;
  bool without_ceilings = false;
  line.option("-o,--output", "result file (HDF5) to write", files({".h5"}));
  line.flag("--resume", options.resume, "continue the result file; start it if missing");
  line.flag("--overwrite", options.overwrite, "replace the result file");
  line.option("--shard",
              "I/N: measure the I-th of N parts (from 1), for katt merge to put together");
  line.flag("--json", json, "print a summary as JSON");
  line.flag("--dry-run", dry_run,
            "print the points, rows, memory and time of the sweep; measure and write nothing");
  line.option("--tuning", "file that katt tune wrote, for --tile auto", files({".json"}));
  line.flag(
      "--no-ceilings", without_ceilings,
      "begin at once, without the seconds that measure the limits of this machine: rows have no "
      "share of a ceiling, and none becomes suspect");
  line.flag("--profile", profile, "tell and record where the time goes, from further runs");
  line.flag("--isolate", isolate,
            "outlive a variant that ends the process: a failed row (on a device always)");
  line.option("--score-rule-file",
              "score rules of Python, as katt.sweep writes them: values of --score-rule",
              files({".safetensors"}));
  line.option("--limit-s",
              "seconds after which a step of a variant (its first run, its warm-up, a sample) has "
              "hung: a failed row (default: none)");
  line.example("katt sweep attention --seq 512:8192:x2 --dtype f32,bf16 --causal 0,1 -o mine.h5",
               "every variant at 20 points; katt-report mine.h5 shows them");
  line.example("katt sweep attention --seq 64k --dry-run",
               "points, rows, memory and time; nothing is measured");
  line.example("katt sweep experiments/attention_tiling/sweep.toml -o tiling.h5",
               "a sweep from a file");
  line.example("katt sweep attention --seq 1024 --candidate ./mine.so -o mine.h5",
               "a kernel of yours beside ours");
  MeasureOptions measuring(line, invocation, request);
  line.when_given("--score-rule-file", [&](const std::string& rules) {  // values of an axis
    std::vector<const bench::Operator*> ops;
    for (const bench::SweepEntry& entry : request.entries) bench::add_once(ops, entry.op);
    for (const std::string& rule : bench::split(rules, ',')) {
      for (const bench::Operator* op : ops) op->add_rule(rule);
      if (ops.empty()) continue;
      request.settings.score_rules[io::Safetensors(rule).metadata().at("name")] =
          bench::sha256_of_file(rule);
    }
  });
  if (!line.parse(invocation)) return 0;
  measuring.apply(request);
  const std::optional<int> device = measuring.device(request);
  request.settings.profile |= profile;
  const auto& tuning_file = line.text("--tuning");
  const auto& shard = line.text("--shard");
  constexpr double day_s = 86400;
  const double limit_s = line.number("--limit-s", 0.1, day_s, 0);
  options.output = line.text("-o").value_or("");
  if (shard) options.shard = bench::parse_shard(*shard);
  options.command = invocation.command;
  options.measure_ceilings = !without_ceilings;
  if (bench::watch::is_continued()) {  // in the file of the process before this one
    options.resume = true;
    options.overwrite = false;
  }
  const ranks::Communicator ranks = ranks::world();
  const bool first = ranks.rank() == 0;  // rank 0 writes the file and prints
  if (limit_s > 0 && ranks.size() > 1) {
    throw InputError("--limit-s: expected on one rank: mpirun ends the others with one that dies");
  }
  if (isolate && ranks.size() > 1) {
    throw InputError("--isolate: expected on one rank: mpirun ends the others with one that dies");
  }
  const bool by_all_ranks = ranks.size() > 1 && bench::is_collective(request.entries);
  if (by_all_ranks) bench::share_cores(ranks, request.entries);
  else if (ranks.size() > 1) bench::allow_all_processors();
  bench::Progress progress(messages(), is_verbose());
  if (by_all_ranks && first && request.settings.profile) {
    progress.note("--profile: rows that all ranks measure together have none");
  }
  const bool tuned = bench::asks_for_tuning(request.entries);
  std::optional<std::filesystem::path> tuned_tiles;
  bench::Tuning tuning;
  bench::together(ranks, [&] {
    if (first && !dry_run) {
      bench::check_output(options);
      std::vector<io::NamedPath> inputs = measuring.inputs(request);
      const auto usual = tuned ? bench::usual_tuning_file() : std::nullopt;
      if (tuning_file) inputs.push_back({"--tuning", *tuning_file});
      else if (usual) inputs.push_back({"--tuning", *usual});
      for (const std::string& rule :
           bench::split(line.text("--score-rule-file").value_or(""), ',')) {
        if (!rule.empty()) inputs.push_back({"--score-rule-file", rule});
      }
      io::check_distinct({{"-o", options.output}}, inputs);
    }
    tuned_tiles = tuning_path(tuning_file);
    if (tuned && tuned_tiles) tuning = bench::Tuning::read(*tuned_tiles);
  });

  const bool at_risk =
      !dry_run && (isolate || limit_s > 0 || asks_for(request.entries, Backend::cuda));
  if (at_risk && ranks.size() == 1 && !bench::watch::is_on()) {
    std::vector<std::string> arguments{"sweep"};
    arguments.insert(arguments.end(), invocation.arguments.begin(), invocation.arguments.end());
    return bench::watch_over(arguments, limit_s,
                             [&](const std::string& line) { progress.note(line); });
  }
  const Runtime runtime(bench::most_threads(request.entries), device);
  std::vector<bench::PlannedCase> plan;
  std::vector<bench::PlannedCase> own;  // those of the part of --shard
  io::Outputs outputs;
  bench::together(ranks, [&] {
    plan = bench::plan_cases(request.entries, request.settings.seed, tuning);
    const bench::Part part = bench::part_of(plan, options.shard, request.settings);
    own = bench::cases_of(part.tasks);
    bench::check_memory(own);
    if (first && !dry_run) {
      outputs.claim({"-o", options.output}, options.resume || options.overwrite,
                    "a new file, --resume or --overwrite");
    }
  });
  tell_threads(bench::most_threads(request.entries));
  if (tuning_file && !tuned) {
    progress.note("--tuning " + *tuning_file + ": no point reads it, --tile auto does");
  }
  if (tuned && tuning.all().empty()) {
    progress.note("--tile auto: " +
                  (tuned_tiles ? tuned_tiles->string() : "the environment names no HOME, which") +
                  " holds no tiles, the variants' defaults are used; katt tune finds tiles");
  }
  for (const std::string& remark : bench::remarks_of(plan)) {
    progress.note("--tile auto: " + remark);
  }
  if (dry_run) {
    if (first) print(bench::outlook(own, request.settings), json);
    return 0;
  }
  const std::atomic<bool>& stop = stop_on_signals("stopping after this kernel");
  const bench::SweepSummary summary =
      by_all_ranks ? bench::run_sweep_together(ranks, invocation.registry, request, plan, options,
                                               progress, stop)
      : ranks.size() > 1
          ? bench::run_sweep_on_ranks(ranks, invocation.registry, request, plan, options, progress,
                                      stop)
          : bench::run_sweep(invocation.registry, request, plan, options, progress, stop);
  if (!first) return 0;
  if (const std::string remark = impl::blas_remark(); !remark.empty()) progress.note(remark);
  progress.note(bench::summary_line(summary, options.output));
  if (json) std::printf("%s\n", bench::summary_json(summary, options.output.string()).c_str());
  return summary.status();
}

}  // namespace katt::impl
