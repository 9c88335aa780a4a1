#include "plan/requests.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <string_view>

#include "core/text.hpp"

namespace katt::bench {
namespace {

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

}  // namespace

bool is_name(std::string_view name) {
  constexpr std::size_t longest = 32;
  return !name.empty() && name.size() <= longest && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

namespace {

/// The names of peers; only their own program knows which exist.
std::vector<std::string> read_peers(const Operator& op, const AxisText& typed) {
  const auto variants = variant_names(op);
  std::vector<std::string> names;
  for (const std::string& name : split(typed.text, ',')) {
    if (!is_name(name)) {
      throw InputError(typed.where + " \"" + truncated(name, 40) +
                       "\": expected the name of a peer, such as torch_flash");
    }
    if (std::find(variants.begin(), variants.end(), name) != variants.end()) {
      throw InputError(typed.where + " " + name + ": is a variant of " + op.name() +
                       ", expected the name of a peer");
    }
    add_once(names, name);
  }
  return names;
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
      add_once(settings, setting);
      listed = true;
    }
    if (!listed) settings.push_back(asked);
  }
  return settings;
}

}  // namespace

std::string comma_note(const AxisText& typed) {
  return typed.text.find(',') == std::string::npos
             ? ""
             : "; a comma separates candidates, expected paths without one";
}

std::vector<NamedCandidate> read_candidates(const AxisText& typed) {
  std::vector<NamedCandidate> candidates;
  for (const std::string& item : split(typed.text, ',')) {
    const auto equals = item.find('=');
    const bool named = equals != std::string::npos;
    NamedCandidate one{.name = named ? item.substr(0, equals) : "",
                       .path = named ? item.substr(equals + 1) : item};
    if (!named) one.name = std::filesystem::path(item).stem().string();
    const std::string where = typed.where + " " + truncated(item, 200);
    if (one.path.empty()) {
      throw InputError(where + ": expected the path of a shared library or a file of Python");
    }
    if (!is_name(one.name)) {
      throw InputError(where + ": \"" + truncated(one.name, 40) +
                       "\" is no name for its rows, expected NAME=PATH, a name of letters, digits "
                       "and '_', at most 32" +
                       comma_note(typed));
    }
    candidates.push_back(std::move(one));
  }
  return candidates;
}

std::map<std::string, const AxisText*> typed_axes(const SweepEntry& entry) {
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
  if (const AxisText* text = find("candidate")) {
    const auto variants = variant_names(*entry.op);
    for (const NamedCandidate& one : read_candidates(*text)) {
      if (std::ranges::find(variants, one.name) != variants.end()) {
        throw InputError(text->where + " " + one.path + ": " + one.name + " is a variant of " +
                         entry.op->name() + ", expected another name, NAME=PATH");
      }
      if (std::ranges::find(request.peers, one.name) != request.peers.end()) {
        throw InputError(text->where + " " + one.name +
                         ": is the name of a peer or of another candidate, expected " + one.name +
                         "_2=" + one.path);
      }
      request.peers.push_back(one.name);
    }
  }
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

std::vector<std::pair<std::string, AxisValue>> read_paired(const SweepEntry& entry,
                                                           const AxisText& typed,
                                                           std::span<const EntryAxis> axes) {
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
    const auto axis = std::ranges::find(axes, name, &EntryAxis::name);
    if (axis == axes.end()) {
      std::vector<std::string> known;
      for (const EntryAxis& one : axes) {
        if (one.name != "backend" && one.name != "threads") known.push_back(one.name);
      }
      throw InputError(where + ": the sweep has no values of such an axis of " + entry.op->name() +
                       "; expected one of " + join(known, ", "));
    }
    AxisValue reference = axis->values.front();
    if (key.size() < item.size()) {
      const auto specs = all_axes(*entry.op);
      const auto spec = std::ranges::find(specs, name, &AxisSpec::name);
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
    if (std::ranges::any_of(paired, [&](const auto& one) { return one.first == name; })) {
      throw InputError(where + ": names " + name + " twice, expected each axis once");
    }
    paired.emplace_back(name, reference);
  }
  return paired;
}

bool same_config(const Config& a, const Config& b) {
  return a.variant == b.variant && a.setting == b.setting;
}

void add_configs(PlannedCase& planned, const ConfigRequest& request, const Tuning& tuning) {
  const Operator& op = *planned.op;
  const Point& point = planned.point;
  const auto infos = op.variants(point.backend, point.pass);
  std::vector<std::string> names;
  for (const std::string& name : request.variants) {
    if (name == auto_variant) planned.of_auto = op.resolve(point, {.variant = name}).variant;
    add_once(names, name == auto_variant ? planned.of_auto : name);
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
        if (std::string remark = tuning.remark(op, point, name); !remark.empty()) {
          add_once(planned.remarks, std::move(remark));
        }
      }
      add_once(configs, Config{name, setting}, same_config);
    }
    for (const std::string& preset : request.presets) {
      if (info->settings.empty()) break;  // takes no tile
      const PresetTile choice = op.preset(point, name, preset).value_or(PresetTile{});
      const Config config{name, choice.setting};
      add_once(configs, Config(config), same_config);
      if (!choice.refusal.empty()) planned.refused.emplace_back(config, choice.refusal);
    }
  }
  for (const std::string& peer : request.peers) configs.push_back({.variant = peer});
}

}  // namespace katt::bench
