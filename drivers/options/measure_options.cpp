#include "drivers/options/measure_options.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "drivers/runtime/runtime.hpp"
#include "plan/axes.hpp"
#include "plan/operator_axes.hpp"
#include "plan/settings.hpp"
#include "sweep/peer.hpp"

namespace katt::impl {
namespace {

/// The request of a target, OP or FILE.toml.
bench::SweepRequest read_target(const Invocation& invocation, const std::string& target) {
  if (target.empty()) {
    throw InputError(
        "the operator or the sweep file is missing: katt sweep OP [axes] -o OUT.h5; "
        "katt info lists the operators");
  }
  for (const bench::Operator* op : invocation.registry.all()) {
    if (op->name() != target) continue;
    bench::SweepRequest request;
    request.entries.emplace_back().op = op;
    return request;
  }
  if (target.ends_with(".toml")) return bench::read_sweep_file(target, invocation.registry);
  if (target.find_first_of("./") != std::string::npos) {
    throw InputError(target + ": expected an operator, or a sweep file whose name ends in .toml");
  }
  static_cast<void>(invocation.registry.find(target));  // throws the list of operators
  return {};
}

bench::SweepRequest read_request(const CommandLine& line, const Invocation& invocation) {
  const std::string target = line.first_positional(invocation.arguments);
  if (invocation.completes) {
    try {
      return read_target(invocation, target);
    } catch (const InputError&) {
      return {};  // the target is not typed to its end yet
    }
  }
  const auto asks_for_help = [](const auto& one) { return one == "--help" || one == "-h"; };
  if (target.empty() && std::ranges::any_of(invocation.arguments, asks_for_help)) return {};
  return read_target(invocation, target);
}

/// The values of an axis that a shell can offer.
Values values_of(const bench::AxisSpec& axis) {
  std::vector<std::string> words = axis.choices;
  const bool is_switch =
      std::holds_alternative<std::int64_t>(axis.fallback) && axis.minimum == 0 && axis.maximum == 1;
  if (is_switch) words = {"0", "1"};
  return some_of(std::move(words));
}

/// Names of a request's operators, each once.
Values names_of(const bench::SweepRequest& request,
                std::vector<std::string> (*names)(const bench::Operator&)) {
  return {.words =
              [&request, names] {
                std::vector<std::string> all;
                for (const bench::SweepEntry& entry : request.entries) {
                  for (const std::string& name : names(*entry.op)) bench::add_once(all, name);
                }
                return all;
              },
          .is_list = true};
}

/// Values that --tile takes: auto, presets of devices, and the tiles of the variants.
std::vector<std::string> tile_names(const bench::Operator& op) {
  std::vector<std::string> names{"auto"};
  for (const std::string& name : bench::preset_names(op)) bench::add_once(names, name);
  bench::for_each_variant(op, [&](const bench::VariantInfo& info) {
    for (const Setting& tile : info.settings) bench::add_once(names, to_text(tile));
  });
  return names;
}

std::vector<std::string> axis_names(const bench::Operator& op) {
  std::vector<std::string> names;
  for (const bench::AxisSpec& axis : op.axes()) names.push_back(axis.name);
  return names;
}

}  // namespace

bool asks_for(std::span<const bench::SweepEntry> entries, Backend backend) {
  const bench::AxisValue wanted = std::string(name_of(backend));
  return std::any_of(entries.begin(), entries.end(), [&](const bench::SweepEntry& entry) {
    const auto values = bench::asked_values(entry, "backend");
    return std::find(values.begin(), values.end(), wanted) != values.end();
  });
}

MeasureOptions::MeasureOptions(CommandLine& line, const Invocation& invocation,
                               bench::SweepRequest& request)
    : line_(line) {
  Values targets = operator_values(invocation.registry);
  targets.endings = {".toml"};
  line.positional("target", "operator, or sweep file", std::move(targets));
  line.option("--device", device_help);
  line.flag("--cold", cold_, "flush the caches before every sample");
  line.flag("--untrusted", untrusted_,
            "run candidates and peers in a cage: no network, no writable file, no other process");
  request = read_request(line, invocation);
  for (const bench::SettingSpec& spec : bench::setting_specs()) {
    const bool is_program = spec.key.ends_with("_program");
    add(settings_, spec.key, "", spec.help, "Measuring", is_program ? files({""}) : Values());
  }
  for (const bench::SweepEntry& entry : request.entries) {
    for (const auto& specs : {entry.op->axes(), bench::common_axes(*entry.op)}) {
      for (const bench::AxisSpec& axis : specs) {
        add(axes_, axis.name, axis.short_name, axis.help, "Axes", values_of(axis));
      }
    }
  }
  add(axes_, "variant", "", "variants to compare; auto: the fastest at each point (default: all)",
      "Axes", names_of(request, bench::variant_names));
  add(axes_, "peer", "", "other libraries to compare with, e.g. torch_flash", "Axes",
      some_of(bench::installed_peers()));
  add(axes_, "candidate", "",
      "kernels of yours to compare: [NAME=]PATH of a shared library (katt/candidate.h) or of a "
      "file of Python",
      "Axes", files({".so", ".py"}));
  add(axes_, "tile", "",
      "tiles such as 64x64,128x64; auto: those that katt tune found; presets of "
      "devices such as avx512, amx, h200 (katt info OP)",
      "Axes", names_of(request, tile_names));
  add(axes_, "tile_q", "", "query extents of the tiles, combined with --tile-kv", "Axes");
  add(axes_, "tile_kv", "", "key extents of the tiles", "Axes");
  add(axes_, "paired", "",
      "axes, NAME or NAME=VALUE, whose points are measured in the same rounds and compared with "
      "the first value, or VALUE",
      "Axes", names_of(request, axis_names));
  line.footer("Axes take lists and ranges: 512,1024 or 512:16384:x2 or 64:256:+64.");
}

void MeasureOptions::add(Names& options, const std::string& key, const std::string& alias,
                         const std::string& help, const char* group, Values values) {
  const std::string name = dashed(key);
  if (std::ranges::find(options, name) != options.end()) return;
  options.push_back(name);
  line_.option(alias.empty() ? name : dashed(alias) + "," + name, help, std::move(values), group);
}

void MeasureOptions::apply(bench::SweepRequest& request) const {
  if (request.entries.empty()) throw InputError("expected an operator or a sweep file");
  request.settings.cold |= cold_;
  request.settings.untrusted |= untrusted_;
  for (const std::string& name : settings_) {
    if (const auto& text = line_.text(name)) {
      (void)bench::set_setting(request.settings, bench::canonical_key(name), *text, name);
    }
  }
  std::vector<bench::AxisText> typed;
  for (const std::string& name : axes_) {
    if (const auto& text = line_.text(name)) {
      typed.push_back({.key = bench::canonical_key(name), .text = *text, .where = name});
    }
  }
  for (bench::SweepEntry& entry : request.entries) bench::override_axes(entry, typed);
  bench::check_peers(request);
  bench::check_candidates(request);
}

std::optional<int> MeasureOptions::device(const bench::SweepRequest& request) const {
  const bool on_device = asks_for(request.entries, Backend::cuda);
  return device_option(line_.text("--device"),
                       on_device ? Backend::cuda : backend_option(std::nullopt));
}

std::vector<io::NamedPath> MeasureOptions::inputs(const bench::SweepRequest& request) const {
  std::vector<io::NamedPath> inputs;
  const auto& target = line_.text("target");
  if (!request.source.empty() && target) inputs.push_back({"the sweep file", *target});
  for (const auto& [name, candidate] : request.settings.candidates) {
    inputs.push_back({"--candidate", candidate.path});
  }
  for (const std::string& program :
       {request.settings.peer_program, request.settings.candidate_program}) {
    if (!program.empty()) inputs.push_back({"a program of the sweep", program});
  }
  return inputs;
}

}  // namespace katt::impl
