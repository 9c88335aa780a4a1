#include <cstdio>
#include <filesystem>

#include "bench/forecast.hpp"
#include "bench/sweep.hpp"
#include "bench/text.hpp"
#include "bench/tuning.hpp"
#include "drivers/command_line.hpp"
#include "drivers/commands.hpp"
#include "drivers/measure_options.hpp"
#include "drivers/runtime.hpp"

namespace katt::impl {
namespace {

/// "attention forward flash f32: 128x64 3.21 ms, 1.12x the default 64x64"
void print(const bench::TunedTile& tuned) {
  std::string line = tuned.op + " " + tuned.pass + " " + tuned.variant + " " +
                     std::string(name_of(tuned.dtype)) + ": " + to_text(tuned.tile) + " " +
                     bench::human_seconds(tuned.time_s);
  if (tuned.tile == tuned.usual) {
    line += ", the default";
  } else if (tuned.usual_time_s > 0) {
    char ratio[32];
    std::snprintf(ratio, sizeof ratio, "%.2fx", tuned.usual_time_s / tuned.time_s);
    line += std::string(", ") + ratio + " the default " + to_text(tuned.usual);
  }
  std::printf("%s\n", line.c_str());
}

}  // namespace

int tune_command(const Invocation& invocation) {
  CommandLine line("katt tune",
                   "Find the fastest tiles of this machine, for --tile auto: katt tune OP [axes]");
  bench::SweepRequest request = read_target(invocation);
  std::optional<std::string> output;
  std::optional<std::string> results;
  line.option("-o,--output", output,
              "tuning file to update (default: " + bench::usual_tuning_file().string() + ")");
  bool json = false;
  line.flag("--json", json, "print the tiles as the JSON of a tuning file");
  line.option("--results", results, "result file (HDF5) to keep what was measured in");
  MeasureOptions measuring(line, request);
  if (!line.parse(invocation.arguments)) return 0;
  measuring.apply(request);
  const std::optional<int> device = measuring.device(request);

  const std::filesystem::path path =
      output ? std::filesystem::path(*output) : bench::usual_tuning_file();
  bench::Tuning found;
  bench::Tuning tuning = bench::Tuning::read(path);
  std::error_code ignored;
  if (results && (results->empty() || std::filesystem::exists(*results, ignored))) {
    throw InputError("--results " + *results + ": " + (results->empty() ? "is empty" : "exists") +
                     ", expected a new file");
  }
  tuning.write(path);  // a file that cannot be written is told before anything is measured
  bench::SweepOptions options;
  options.command = invocation.command;
  options.output = results.value_or(path.string() + ".h5");
  options.overwrite = !results;

  const Runtime runtime(bench::most_threads(request.entries), device);
  bench::ask_for_all_tiles(request.entries, invocation.registry);
  const auto plan = bench::plan_cases(request.entries, request.settings.seed);
  bench::check_memory(plan);
  options.measure_ceilings = results.has_value();
  options.finished = [&](const bench::PlannedCase& planned,
                         std::span<const bench::RowResult> rows) {
    for (const bench::TunedTile& tuned : bench::fastest_tiles(planned, rows)) {
      if (!json) print(tuned);
      found.put(tuned);
      tuning.put(tuned);
    }
    tuning.write(path);
  };
  bench::Progress progress(stderr);
  const bench::SweepSummary summary =
      bench::run_sweep(invocation.registry, request, plan, options, progress, stop_on_signals());
  if (!results) std::filesystem::remove(options.output);
  progress.note(bench::summary_line(summary, path));
  if (json) std::printf("%s\n", found.json().c_str());
  return summary.interrupted ? 130 : summary.failed > 0 ? 1 : 0;
}

}  // namespace katt::impl
