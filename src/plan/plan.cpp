#include "plan/plan.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <numeric>

#include "core/text.hpp"
#include "machine/machine.hpp"
#include "plan/tuning.hpp"

namespace katt::bench {
namespace {

struct Axis {
  std::string name;
  std::vector<AxisValue> values;
};

/// The variants and tiles that an entry requests.
struct ConfigRequest {
  std::vector<std::pair<std::string, AxisValue>> paired;  ///< axes with the value of the reference
  std::vector<std::string> variants;                      ///< empty: all
  std::vector<std::string> peers;
  std::vector<Setting> tiles;                         ///< of `tile`
  std::vector<std::string> presets;                   ///< of `tile`, by name
  std::map<std::string, std::vector<int>> extents{};  ///< of `tile_q`, `tile_kv`
};

template <class T>
void add_once(std::vector<T>& list, T value, auto&& same) {
  if (std::none_of(list.begin(), list.end(), [&](const T& known) { return same(known, value); })) {
    list.push_back(std::move(value));
  }
}

/// Calls f(info) for the variants of every backend of this build and every pass.
template <class F>
void for_each_variant(const Operator& op, const F& f) {
  for (const Backend backend : all_backends) {
    if (!is_built(backend)) continue;
    for (const std::string& pass : op.passes()) {
      for (const VariantInfo& info : op.variants(backend, pass)) f(info);
    }
  }
}

std::vector<std::string> variant_names(const Operator& op) {
  std::vector<std::string> names{std::string(auto_variant)};
  for_each_variant(op,
                   [&](const VariantInfo& info) { add_once(names, info.name, std::equal_to<>()); });
  return names;
}

AxisSpec variant_axis(const Operator& op) {
  return {.name = "variant", .fallback = std::string(), .choices = variant_names(op)};
}

AxisSpec tile_axis(std::string name) {
  return {.name = std::move(name), .fallback = std::int64_t{1}, .minimum = 1, .maximum = max_tile};
}

std::vector<std::string> read_variants(const Operator& op, const AxisText& typed) {
  std::vector<std::string> names;
  try {
    for (const AxisValue& name : parse_axis(variant_axis(op), typed)) {
      names.push_back(std::get<std::string>(name));
    }
  } catch (const InputError& error) {  // perhaps the name of a peer: only the peers' program knows
                                       // them
    throw InputError(std::string(error.what()) + "; another library is named by " +
                     (typed.where.starts_with("--") ? "--peer" : "peer"));
  }
  return names;
}

/// The names of peers; only their own program knows which exist.
std::vector<std::string> read_peers(const Operator& op, const AxisText& typed) {
  constexpr std::size_t longest = 32;  // of the column `variant`
  const auto variants = variant_names(op);
  std::vector<std::string> names;
  for (const std::string& name : split(typed.text, ',')) {
    const bool plain = std::all_of(
        name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (name.empty() || name.size() > longest || !plain) {
      throw InputError(typed.where + " \"" + truncated(name, 40) +
                       "\": expected the name of a peer, such as torch_flash");
    }
    if (std::find(variants.begin(), variants.end(), name) != variants.end()) {
      throw InputError(typed.where + " " + name + ": is a variant of " + op.name() +
                       ", expected the name of a peer");
    }
    add_once(names, name, std::equal_to<>());
  }
  return names;
}

/// The typed axes of an entry by axis name, each at most once.
std::map<std::string, const AxisText*> by_axis(const SweepEntry& entry) {
  std::map<std::string, const AxisText*> typed;
  for (const AxisText& axis : entry.axes) {
    const auto name = axis_of_key(*entry.op, axis.key);
    if (!name) {
      const std::string near = suggestion(axis.key, axis_keys(*entry.op));
      throw InputError(
          axis.where + ": " + entry.op->name() + " has no such axis" +
          (near.empty() ? "; expected one of " + join(axis_keys(*entry.op), ", ") : "; " + near));
    }
    if (const auto [place, added] = typed.emplace(*name, &axis); !added) {
      throw InputError(axis.where + ": names the same axis as " + place->second->where);
    }
  }
  return typed;
}

ConfigRequest read_configs(const SweepEntry& entry,
                           const std::map<std::string, const AxisText*>& typed) {
  ConfigRequest request;
  const auto find = [&](const char* key) -> const AxisText* {
    const auto found = typed.find(key);
    return found == typed.end() ? nullptr : found->second;
  };
  if (const AxisText* text = find("variant")) {
    request.variants = read_variants(*entry.op, *text);
  }
  if (const AxisText* text = find("peer")) request.peers = read_peers(*entry.op, *text);
  if (const AxisText* text = find("tile")) {
    const auto presets = preset_names(*entry.op);
    AxisText tiles = *text;
    std::vector<std::string> others;
    for (const std::string& item : split(text->text, ',')) {
      const bool preset = std::find(presets.begin(), presets.end(), item) != presets.end();
      (preset ? request.presets : others).push_back(item);
    }
    tiles.text = join(others, ",");
    if (request.presets.empty() || !others.empty()) request.tiles = parse_tiles(tiles, presets);
    for (const char* other : {"tile_q", "tile_kv"}) {
      if (const AxisText* extra = find(other)) {
        throw InputError(extra->where + " " + extra->text + ": cannot be combined with " +
                         text->where + " " + text->text);
      }
    }
  }
  for (const char* key : {"tile_q", "tile_kv"}) {
    if (const AxisText* text = find(key)) {
      for (const AxisValue& value : parse_axis(tile_axis(key), *text)) {
        request.extents[key].push_back(static_cast<int>(std::get<std::int64_t>(value)));
      }
    }
  }
  return request;
}

/// The axes whose points are measured in the same rounds: NAME, or NAME=VALUE for a reference other
/// than the first value. `axes` are those that the entry names.
std::vector<std::pair<std::string, AxisValue>> read_paired(const SweepEntry& entry,
                                                           const AxisText& typed,
                                                           std::span<const Axis> axes) {
  std::vector<std::pair<std::string, AxisValue>> paired;
  for (const std::string& item : split(typed.text, ',')) {
    const std::string key = item.substr(0, item.find('='));
    const std::string where = typed.where + " " + truncated(key, 40);
    const std::string name = axis_of_key(*entry.op, canonical_key(key)).value_or("");
    for (const char* fixed : {"backend", "threads", "ranks"}) {
      if (name == fixed) {
        throw InputError(where + ": cannot change from round to round; expected another axis");
      }
    }
    const auto axis = std::ranges::find(axes, name, &Axis::name);
    if (axis == axes.end()) {
      std::vector<std::string> known;
      for (const Axis& one : axes) {
        if (one.name != "backend" && one.name != "threads") known.push_back(one.name);
      }
      throw InputError(where + ": the sweep has no values of such an axis of " + entry.op->name() +
                       "; expected one of " + join(known, ", "));
    }
    AxisValue reference = axis->values.front();
    if (key.size() < item.size()) {
      const AxisSpec* spec = nullptr;
      const auto common = common_axes(*entry.op);
      const auto own = entry.op->axes();
      for (const auto* specs : {&common, &own}) {
        for (const AxisSpec& one : *specs) {
          if (one.name == name) spec = &one;
        }
      }
      const std::string text = item.substr(key.size() + 1);
      const auto values = parse_axis(*spec, {.key = name, .text = text, .where = where});
      if (values.size() != 1 ||
          std::ranges::find(axis->values, values.front()) == axis->values.end()) {
        std::vector<std::string> known;
        for (const AxisValue& value : axis->values) known.push_back(to_text(value));
        throw InputError(where + "=" + truncated(text, 40) +
                         ": is not a value of the sweep; expected one of " + join(known, ", "));
      }
      reference = values.front();
    }
    add_once(paired, std::pair(name, reference),
             [](const auto& a, const auto& b) { return a.first == b.first; });
  }
  return paired;
}

/// Every combination of the requested extents; 0 means an open parameter.
std::vector<Setting> asked_settings(const VariantInfo& info, const ConfigRequest& request) {
  std::vector<Setting> asked{Setting{}};
  for (const std::string& parameter : info.parameters) {
    const auto extents = request.extents.find(parameter);
    const std::vector<int> values =
        extents == request.extents.end() ? std::vector<int>{0} : extents->second;
    std::vector<Setting> longer;
    for (const Setting& setting : asked) {
      for (const int value : values) longer.emplace_back(setting).push_back(value);
    }
    asked = std::move(longer);
  }
  return asked;
}

/// The settings to request from a variant. With one extent open: the variant's settings that match
/// the others.
std::vector<Setting> settings_for(const VariantInfo& info, const ConfigRequest& request) {
  if (info.settings.empty()) return {Setting{}};
  if (!request.tiles.empty() || !request.presets.empty()) return request.tiles;
  if (request.extents.empty()) return {Setting{}};
  const auto fits = [](const Setting& setting, const Setting& asked) {
    return std::equal(setting.begin(), setting.end(), asked.begin(), asked.end(),
                      [](int value, int wanted) { return wanted == 0 || value == wanted; });
  };
  std::vector<Setting> settings;
  for (const Setting& asked : asked_settings(info, request)) {
    bool listed = false;
    for (const Setting& setting : info.settings) {
      if (!fits(setting, asked)) continue;
      add_once(settings, setting, std::equal_to<>());
      listed = true;
    }
    if (!listed) settings.push_back(asked);
  }
  return settings;
}

bool same(const Config& a, const Config& b) {
  return a.variant == b.variant && a.setting == b.setting;
}

/// Adds the configurations of a point to its case.
void add_configs(PlannedCase& planned, const ConfigRequest& request, const Tuning& tuning) {
  const Operator& op = *planned.op;
  const Point& point = planned.point;
  const auto infos = op.variants(point.backend, point.pass);
  std::vector<std::string> names;
  for (const std::string& name : request.variants) {
    if (name == auto_variant) planned.of_auto = op.resolve(point, {.variant = name}).variant;
    add_once(names, name == auto_variant ? planned.of_auto : name, std::equal_to<>());
  }
  if (names.empty()) {
    for (const VariantInfo& info : infos) names.push_back(info.name);
  }
  std::vector<Config>& configs = planned.configs;
  for (const std::string& name : names) {
    const auto info = std::find_if(infos.begin(), infos.end(),
                                   [&](const VariantInfo& known) { return known.name == name; });
    if (info == infos.end()) {
      configs.push_back({.variant = name});  // a variant of another backend or pass becomes a
                                             // skipped row
      continue;
    }
    for (Setting setting : settings_for(*info, request)) {
      if (setting.empty() && !info->settings.empty() && !request.tiles.empty()) {
        setting = tuning.find(op, point, name).value_or(Setting{});
      }
      add_once(configs, Config{name, setting}, same);
    }
    for (const std::string& preset : request.presets) {
      if (info->settings.empty()) break;  // takes no tile
      const PresetTile choice = op.preset(point, name, preset).value_or(PresetTile{});
      const Config config{name, choice.setting};
      add_once(configs, Config(config), same);
      if (!choice.refusal.empty()) planned.refused.emplace_back(config, choice.refusal);
    }
  }
  for (const std::string& peer : request.peers) configs.push_back({.variant = peer});
}

void set_value(Point& point, const std::string& axis, const AxisValue& value) {
  if (axis == "pass") point.pass = std::get<std::string>(value);
  else if (axis == "backend") point.backend = *backend_from_name(std::get<std::string>(value));
  else if (axis == "threads") point.threads = static_cast<int>(std::get<std::int64_t>(value));
  else if (axis == "dtype") point.dtype = *dtype_from_name(std::get<std::string>(value));
  else point.values[axis] = value;
}

/// Values of axes that the entry does not name: the value of the axis that they follow, or their
/// fallback.
void fill_rest(const Operator& op, Point& point) {
  const auto axes = op.axes();
  for (const AxisSpec& axis : axes) {
    if (point.values.contains(axis.name)) continue;
    const AxisSpec* source = &axis;
    std::size_t steps = 0;
    while (!source->follows.empty() && !point.values.contains(source->name) &&
           steps++ < axes.size()) {
      const auto next = std::find_if(axes.begin(), axes.end(), [&](const AxisSpec& other) {
        return other.name == source->follows;
      });
      if (next == axes.end()) break;
      source = &*next;
    }
    const auto known = point.values.find(source->name);
    point.values[axis.name] = known != point.values.end() ? known->second : source->fallback;
  }
}

class Planner {
 public:
  Planner(std::uint64_t seed, const Tuning& tuning, std::size_t most)
      : seed_(seed), tuning_(tuning), most_(most) {}

  void add(const SweepEntry& entry) {
    const auto typed = by_axis(entry);
    ConfigRequest request = read_configs(entry, typed);
    std::vector<Axis> axes;
    for (const auto& specs : {common_axes(*entry.op), entry.op->axes()}) {
      for (const AxisSpec& spec : specs) {
        if (const auto text = typed.find(spec.name); text != typed.end()) {
          axes.push_back({spec.name, parse_axis(spec, *text->second)});
        } else if (spec.name == "pass" || spec.name == "backend") {
          axes.push_back({spec.name, {spec.fallback}});
        }
      }
    }
    std::size_t points = 1;  // at most 10,000 a factor, and the loop ends before they are many
    for (const Axis& axis : axes) {
      if ((points *= axis.values.size()) > most_) refuse_more();
    }
    if (const auto text = typed.find("paired"); text != typed.end()) {
      request.paired = read_paired(entry, *text->second, axes);
    }
    product(entry, axes, request, 0, {});
  }

  std::vector<PlannedCase> take() {
    std::map<std::string, std::size_t> first;  // of each group
    std::vector<std::size_t> group;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const std::string& name = cases_[i].paired.group;
      group.push_back(name.empty() ? i : first.try_emplace(name, i).first->second);
    }
    std::vector<std::size_t> order(cases_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return group[i]; });
    std::vector<PlannedCase> sorted;
    for (const std::size_t i : order) sorted.push_back(std::move(cases_[i]));
    return sorted;
  }

 private:
  [[noreturn]] void refuse_more() const {
    throw InputError("the sweep has more than " + std::to_string(most_) + " points");
  }

  void product(const SweepEntry& entry, const std::vector<Axis>& axes, const ConfigRequest& request,
               std::size_t depth, Point point) {
    if (depth < axes.size()) {
      for (const AxisValue& value : axes[depth].values) {
        set_value(point, axes[depth].name, value);
        product(entry, axes, request, depth + 1, point);
      }
      return;
    }
    point.seed = seed_;
    point.threads = resolved_threads(point.backend, point.threads);
    Point reference = point;
    fill_rest(*entry.op, point);
    try {
      entry.op->validate(point);
    } catch (const InputError& error) {
      if (entry.where.empty()) throw;
      throw InputError(entry.where + ": " + error.what());
    }
    PlannedCase planned{.op = entry.op,
                        .label = entry.label,
                        .point = point,
                        .configs = {},
                        .peers = request.peers,
                        .where = entry.where};
    if (!request.paired.empty()) planned.paired = pairing(planned, request, std::move(reference));
    add_configs(planned, request, tuning_);
    if (planned.configs.empty()) {
      throw InputError(entry.op->name() + ": has no variant for pass " + point.pass +
                       " on the backend " + std::string(name_of(point.backend)));
    }
    const auto [place, added] = index_.emplace(case_key(planned), cases_.size());
    if (added) {
      if (cases_.size() == most_) refuse_more();
      cases_.push_back(std::move(planned));
      return;
    }
    PlannedCase& known = cases_[place->second];
    if (known.paired.group != planned.paired.group) {
      throw InputError((entry.where.empty() ? "" : entry.where + ": ") + entry.op->name() +
                       ": has points of another sweep of this label, which pairs other axes; "
                       "expected a label of its own");
    }
    if (known.of_auto.empty()) known.of_auto = planned.of_auto;
    for (const std::string& peer : planned.peers) add_once(known.peers, peer, std::equal_to<>());
    for (Config& config : planned.configs) add_once(known.configs, std::move(config), same);
    std::ranges::move(planned.refused, std::back_inserter(known.refused));
  }

  /// `point`: the case's, before the axes that nobody names are filled in.
  static Pairing pairing(const PlannedCase& planned, const ConfigRequest& request, Point point) {
    Pairing pairing;
    for (const auto& [axis, value] : request.paired) {
      set_value(point, axis, value);
      if (!pairing.to.empty()) pairing.to += ',';
      pairing.to += axis + "=" + to_text(value);
    }
    fill_rest(*planned.op, point);
    PlannedCase reference = planned;
    reference.point = std::move(point);
    pairing.group = case_key(reference);
    pairing.is_reference = pairing.group == case_key(planned);
    return pairing;
  }

  std::uint64_t seed_;
  const Tuning& tuning_;
  std::size_t most_;
  std::vector<PlannedCase> cases_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace

bool PlannedCase::is_peer(const Config& config) const {
  return std::find(peers.begin(), peers.end(), config.variant) != peers.end();
}

std::string case_key(const PlannedCase& planned) {
  const Point& point = planned.point;
  std::string key = planned.op->name() + '\n' + planned.label + '\n' + point.pass + '\n' +
                    std::string(name_of(point.backend)) + '\n' + std::to_string(point.threads) +
                    '\n' + std::string(name_of(point.dtype));
  for (const auto& [axis, value] : point.values) key += '\n' + to_text(value);
  return key;
}

std::vector<AxisSpec> common_axes(const Operator& op) {
  std::vector<std::string> backends;
  for (const Backend backend : all_backends) {
    if (is_built(backend)) backends.emplace_back(name_of(backend));
  }
  std::vector<std::string> dtypes;
  for (const Dtype dtype : all_dtypes) dtypes.emplace_back(name_of(dtype));
  return {
      {.name = "pass",
       .fallback = op.passes().front(),
       .choices = op.passes(),
       .help = "what to run"},
      {.name = "backend",
       .fallback = backends.front(),
       .choices = backends,
       .help = "where to run: openmp, serial, cuda"},
      {.name = "threads",
       .fallback = std::int64_t{0},
       .minimum = 1,
       .maximum = 4096,
       .help = "host threads (default: every core)"},
      {.name = "dtype", .fallback = std::string("f32"), .choices = dtypes, .help = "element type"},
  };
}

std::vector<std::string> axis_keys(const Operator& op) {
  std::vector<std::string> keys;
  for (const auto& specs : {op.axes(), common_axes(op)}) {
    for (const AxisSpec& spec : specs) {
      if (!spec.short_name.empty()) keys.push_back(spec.short_name);
      keys.push_back(spec.name);
    }
  }
  keys.insert(keys.end(), {"variant", "peer", "tile", "tile_q", "tile_kv", "paired"});
  return keys;
}

std::optional<std::string> axis_of_key(const Operator& op, std::string_view key) {
  for (const AxisSpec& spec : op.axes()) {
    if (key == spec.name || (!spec.short_name.empty() && key == spec.short_name)) return spec.name;
  }
  const auto keys = axis_keys(op);
  if (std::find(keys.begin(), keys.end(), key) != keys.end()) return std::string(key);
  return std::nullopt;
}

std::vector<std::string> preset_names(const Operator& op) {
  std::vector<std::string> names;
  for_each_variant(op, [&](const VariantInfo& info) {
    for (const std::string& name : info.presets) add_once(names, name, std::equal_to<>());
  });
  return names;
}

Point default_point(const Operator& op, Backend backend, std::string_view pass, Dtype dtype) {
  Point point;
  point.pass = pass;
  point.backend = backend;
  point.threads = resolved_threads(backend, 0);
  point.dtype = dtype;
  fill_rest(op, point);
  return point;
}

std::string refusal_here(const Operator& op, Backend backend, std::string_view pass,
                         const std::string& variant) {
  const auto refusal = [&](const Point& point) -> std::string {
    try {
      return op.supports(point, {.variant = variant}).reason();
    } catch (const InputError& error) {
      return error.what();
    }
  };
  std::string reason;
  for (const Dtype dtype : all_dtypes) {
    Point point = default_point(op, backend, pass, dtype);
    reason = refusal(point);
    for (const char* axis : {"seq_q", "tokens"}) {
      const auto found = point.values.find(axis);
      if (found != point.values.end()) found->second = std::int64_t{1};
    }
    if (reason.empty() || refusal(point).empty()) return {};
  }
  return reason;
}

void override_axes(SweepEntry& entry, std::span<const AxisText> axes) {
  for (const AxisText& axis : axes) {
    const auto name = axis_of_key(*entry.op, axis.key);
    if (!name) continue;
    std::erase_if(entry.axes, [&](const AxisText& old) {
      const auto old_name = axis_of_key(*entry.op, old.key);
      const bool extent = old_name == "tile_q" || old_name == "tile_kv";
      return old_name == name || (name == "tile" && extent) ||
             (old_name == "tile" && (name == "tile_q" || name == "tile_kv"));
    });
  }
  for (const AxisText& axis : axes) {
    if (axis_of_key(*entry.op, axis.key)) entry.axes.push_back(axis);
  }
}

std::vector<AxisValue> asked_values(const SweepEntry& entry, std::string_view common_axis) {
  const auto specs = common_axes(*entry.op);
  const AxisSpec& spec = *std::ranges::find(specs, common_axis, &AxisSpec::name);
  std::vector<AxisValue> values{spec.fallback};
  for (const AxisText& typed : entry.axes) {
    if (typed.key == common_axis) values = parse_axis(spec, typed);
  }
  return values;
}

int most_threads(std::span<const SweepEntry> entries) {
  int most = 1;
  for (const SweepEntry& entry : entries) {
    for (const AxisValue& value : asked_values(entry, "threads")) {
      const auto threads = static_cast<int>(std::get<std::int64_t>(value));
      most = std::max(most, threads == 0 ? machine().cores : threads);
    }
  }
  return most;
}

std::vector<PlannedCase> plan_cases(std::span<const SweepEntry> entries, std::uint64_t seed) {
  return plan_cases(entries, seed, Tuning{});
}

std::vector<PlannedCase> plan_cases(std::span<const SweepEntry> entries, std::uint64_t seed,
                                    const Tuning& tuning, std::size_t most) {
  Planner planner(seed, tuning, most);
  for (const SweepEntry& entry : entries) planner.add(entry);
  return planner.take();
}

std::string unlisted_reason(const PlannedCase& planned, const Config& config) {
  if (planned.is_peer(config)) return {};
  for (const auto& [refused, reason] : planned.refused) {
    if (same(refused, config)) return reason;
  }
  for (const VariantInfo& info : planned.op->variants(planned.point.backend, planned.point.pass)) {
    if (info.name != config.variant) continue;
    return setting_refusal(info.name, info.settings, config.setting);
  }
  return "the backend " + std::string(name_of(planned.point.backend)) + " has no variant " +
         config.variant + " for pass " + planned.point.pass;
}

}  // namespace katt::bench
