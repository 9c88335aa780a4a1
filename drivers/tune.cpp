#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "drivers/options/command_line.hpp"
#include "drivers/options/measure_options.hpp"
#include "drivers/runtime/commands.hpp"
#include "drivers/runtime/messages.hpp"
#include "drivers/runtime/runtime.hpp"
#include "io/outputs.hpp"
#include "plan/forecast.hpp"
#include "plan/tuning.hpp"
#include "record/provenance.hpp"
#include "record/t4.hpp"
#include "sweep/fastest_tiles.hpp"
#include "sweep/sweep.hpp"
#include "sweep/sweep_record.hpp"

namespace katt::impl {
namespace {

/// "attention forward flash f32: 128x64 3.21 ms, 1.12x the default 64x64"
void print(const bench::TunedTile& tuned) {
  std::string line = tuned.op + " " + tuned.pass + " " + tuned.variant + " " +
                     std::string(name_of(tuned.dtype)) + ": " + to_text(tuned.tile) + " " +
                     bench::human_seconds(tuned.time_s.median);
  if (tuned.tile == tuned.usual) {
    line += ", the default";
  } else if (tuned.usual_time_s > 0) {
    char ratio[32];
    std::snprintf(ratio, sizeof ratio, "%.2fx", tuned.usual_ratio);
    line += std::string(", ") + ratio + " the default " + to_text(tuned.usual);
  }
  std::printf("%s\n", line.c_str());
}

/// The rows of a run as a T4 file, which is whole after each case.
class T4File {
 public:
  T4File(const Invocation& invocation, const bench::SweepRequest& request,
         std::span<const bench::PlannedCase> plan, std::filesystem::path path)
      : registry_(invocation.registry),
        path_(std::move(path)),
        columns_(bench::result_columns(registry_)),
        run_(bench::provenance(request, invocation.command, bench::backends_of(plan))) {}

  void add(const bench::PlannedCase& planned, std::span<const bench::RowResult> rows) {
    for (const bench::RowResult& row : rows) {
      rows_.push_back(bench::make_row(columns_, planned, row, {}));
    }
    io::write_file(path_, bench::t4_json(registry_, columns_, rows_, run_) + "\n");
  }

 private:
  const bench::Registry& registry_;
  std::filesystem::path path_;
  std::vector<io::Column> columns_;
  io::Attributes run_;
  std::vector<io::Row> rows_;
};

bool is_json(const std::string& path) { return path.ends_with(".json"); }

}  // namespace

int tune_command(const Invocation& invocation) {
  const bool is_replay = std::ranges::any_of(invocation.arguments, [](const std::string& one) {
    return one == "--replay" || one.starts_with("--replay=");
  });
  if (is_replay) return replay_command(invocation);
  CommandLine line("katt tune",
                   "Find the fastest tiles of this machine, for --tile auto: katt tune OP [axes]");
  bench::SweepRequest request;
  const std::optional<std::filesystem::path> usual = bench::usual_tuning_file();
  line.option("-o,--output",
              "tuning file to update" + (usual ? " (default: " + usual->string() + ")" : ""),
              files({".json"}));
  bool json = false;
  bool exhaustive = false, overwrite = false;
  line.flag("--json", json, "print the tiles as the JSON of a tuning file");
  line.flag("--exhaustive", exhaustive,
            "measure every tile until its time is known, as a sweep does (--rounds does, too)");
  line.option("--results",
              "file to keep what was measured in: NAME.json in the T4 format of tuners, any other "
              "name a result file (HDF5)",
              files({".json", ".h5"}));
  line.flag("--overwrite", overwrite, "replace the file of --results");
  line.option("--replay",
              "result file of every tile to replay the race on, see katt tune --replay --help",
              files({".h5"}));
  line.example("katt tune attention --seq 2048 --dtype f32,bf16",
               "the fastest tile of each variant and dtype, for sweeps with --tile auto");
  line.example("katt tune swiglu_mlp --results mlp.json -o mine.json",
               "into a tuning file of your own, and all that was measured in the T4 format");
  MeasureOptions measuring(line, invocation, request);
  if (!line.parse(invocation)) return 0;
  measuring.apply(request);
  request.settings.race = !exhaustive && request.settings.rounds == 0;
  const std::optional<int> device = measuring.device(request);
  const auto& output = line.text("-o");
  const auto& results = line.text("--results");

  if (!output && !usual) {
    throw InputError("-o is missing: HOME and XDG_CONFIG_HOME name no folder for a tuning file");
  }
  const std::filesystem::path path = output ? std::filesystem::path(*output) : *usual;
  (void)bench::Tuning::read(path);
  if (overwrite && !results) throw InputError("--overwrite: expected --results, which it replaces");
  std::vector<io::NamedPath> targets{{"-o", path}};
  if (results) targets.push_back({"--results", *results});
  io::check_distinct(targets, measuring.inputs(request));
  bench::Tuning found;
  std::size_t finished = 0;
  bench::SweepOptions options;
  options.command = invocation.command;
  options.overwrite = overwrite;
  if (results && !is_json(*results)) options.output = *results;

  const Runtime runtime(bench::most_threads(request.entries), device);
  bench::ask_for_all_tiles(request.entries, invocation.registry);
  const auto plan = bench::plan_cases(request.entries, request.settings.seed);
  bench::check_memory(plan);
  io::Outputs outputs;
  if (results) outputs.claim({"--results", *results}, overwrite);
  // reports an unwritable file before anything is measured
  { const io::AtomicFile writable(path); }
  options.measure_ceilings = !options.output.empty();
  std::optional<T4File> t4;
  if (results && is_json(*results)) t4.emplace(invocation, request, plan, *results);
  options.finished = [&](const bench::PlannedCase& planned,
                         std::span<const bench::RowResult> rows) {
    const std::vector<bench::TunedTile> tiles =
        bench::fastest_tiles(planned, rows, request.settings.race);
    for (const bench::TunedTile& tuned : tiles) {
      if (!json) print(tuned);
      found.put(tuned);
    }
    bench::Tuning::update(path, tiles);
    ++finished;
    if (t4) t4->add(planned, rows);
  };
  tell_threads(bench::most_threads(request.entries));
  bench::Progress progress(messages(), is_verbose());
  const bench::SweepSummary summary =
      bench::run_sweep(invocation.registry, request, plan, options, progress,
                       stop_on_signals("stopping after this kernel"));
  const std::string kept =
      finished == 0 ? " gets no tile, as no point was finished"
                    : " has the tiles of " + bench::counted_text(finished, "finished point");
  progress.note(bench::summary_line(summary, path, kept));
  if (json) std::printf("%s\n", found.json().c_str());
  return summary.status();
}

}  // namespace katt::impl
