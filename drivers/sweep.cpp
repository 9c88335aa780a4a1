#include "bench/sweep.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <list>

#include "bench/json.hpp"
#include "bench/settings.hpp"
#include "drivers/command_line.hpp"
#include "drivers/commands.hpp"
#include "drivers/runtime.hpp"

namespace katt::impl {
namespace {

bench::StopFlag stop_requested{false};

/// The first signal ends the sweep in order; a second one kills it.
void on_signal(int signal) {
  stop_requested = true;
  std::signal(signal, SIG_DFL);
}

/// FILE.toml or OP among the arguments: the first that is neither an option nor an option's value.
/// It is needed before the others are read, because the options are the axes of the operator.
std::string find_target(std::span<const std::string> arguments) {
  const std::vector<std::string> flags{"--resume", "--overwrite", "--cold",
                                       "--json",   "--help",      "-h"};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!argument.starts_with("-")) return argument;
    const bool alone = argument.find('=') != std::string::npos ||
                       std::find(flags.begin(), flags.end(), argument) != flags.end();
    if (!alone) ++i;
  }
  return {};
}

bench::SweepRequest read_target(const bench::Registry& registry, const std::string& target) {
  for (const bench::Operator* op : registry.all()) {
    if (op->name() != target) continue;
    bench::SweepRequest request;
    request.entries.emplace_back().op = op;
    return request;
  }
  if (target.ends_with(".toml")) return bench::read_sweep_file(target, registry);
  static_cast<void>(registry.find(target));  // throws the list of operators
  return {};
}

/// An option of the command line that holds axis values.
struct AxisOption {
  std::string name;
  std::optional<std::string> value{};
};

/// Adds the axes of every operator of the request as options.
void add_axis_options(CommandLine& line, const bench::SweepRequest& request,
                      std::list<AxisOption>& options) {
  const auto add = [&](const std::string& key, const std::string& alias, const std::string& help) {
    const auto dashed = [](std::string name) {
      std::replace(name.begin(), name.end(), '_', '-');
      return "--" + name;
    };
    const std::string name = dashed(key);
    for (const AxisOption& known : options) {
      if (known.name == name) return;
    }
    options.push_back({.name = name});
    line.option(alias.empty() ? name : dashed(alias) + "," + name, options.back().value, help,
                "Axes");
  };
  for (const bench::SweepEntry& entry : request.entries) {
    for (const auto& specs : {entry.op->axes(), bench::common_axes(*entry.op)}) {
      for (const bench::AxisSpec& axis : specs) add(axis.name, axis.short_name, axis.help);
    }
  }
  add("variant", "", "variants to compare (default: all)");
  add("tile", "", "tiles such as 64x64,128x64, or auto (default)");
  add("tile_q", "", "query extents of the tiles, combined with --tile-kv");
  add("tile_kv", "", "key extents of the tiles");
}

}  // namespace

int sweep_command(const Invocation& invocation) {
  CommandLine line("katt sweep", "Measure an operator over many points: katt sweep OP | FILE.toml");
  const std::string target = find_target(invocation.arguments);
  bench::SweepRequest request;
  if (!target.empty()) request = read_target(invocation.registry, target);

  std::optional<std::string> ignored;
  std::optional<std::string> output;
  bench::SweepOptions options;
  bool json = false;
  std::list<AxisOption> axes;
  std::list<AxisOption> settings;
  line.positional("target", ignored, "operator, or sweep file");
  line.option("-o,--output", output, "result file (HDF5) to write");
  line.flag("--resume", options.resume, "continue the result file; start it if missing");
  line.flag("--overwrite", options.overwrite, "replace the result file");
  line.flag("--cold", request.settings.cold, "flush the caches before every sample");
  line.flag("--json", json, "print a summary as JSON");
  for (const bench::SettingSpec& spec : bench::setting_specs()) {
    settings.push_back({.name = "--" + spec.key});
    std::replace(settings.back().name.begin(), settings.back().name.end(), '_', '-');
    line.option(settings.back().name, settings.back().value, spec.help, "Measuring");
  }
  add_axis_options(line, request, axes);
  line.footer("Axes take lists and ranges: 512,1024 or 512:16384:x2 or 64:256:+64.");
  if (!line.parse(invocation.arguments)) return 0;
  if (target.empty()) throw InputError("katt sweep: expected an operator or a sweep file");

  for (const AxisOption& one : settings) {
    if (!one.value) continue;
    (void)bench::set_setting(request.settings, bench::canonical_key(one.name), *one.value,
                             one.name);
  }
  std::vector<bench::AxisText> typed;
  for (const AxisOption& one : axes) {
    if (!one.value) continue;
    typed.push_back({.key = bench::canonical_key(one.name), .text = *one.value, .where = one.name});
  }
  for (bench::SweepEntry& entry : request.entries) bench::override_axes(entry, typed);
  options.output = output.value_or("");
  options.command = invocation.command;
  bench::check_output(options);

  const Runtime runtime(bench::most_threads(request.entries));
  const auto plan = bench::plan_cases(request.entries, request.settings.seed);
  bench::check_memory(plan);
  bench::Progress progress(stderr);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  const bench::SweepSummary summary =
      bench::run_sweep(invocation.registry, request, plan, options, progress, stop_requested);
  progress.note(bench::summary_line(summary, options.output));
  if (json) std::printf("%s\n", bench::summary_json(summary, options.output.string()).c_str());
  return summary.interrupted ? 130 : summary.failed > 0 ? 1 : 0;
}

}  // namespace katt::impl
