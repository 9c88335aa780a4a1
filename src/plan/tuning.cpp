#include "plan/tuning.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "io/json_input.hpp"
#include "io/outputs.hpp"
#include "io/printable.hpp"
#include "machine/machine.hpp"
#include "op/code.hpp"

namespace katt::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int schema = 1;
constexpr std::size_t max_tuning_bytes = 1 << 26;
constexpr int max_depth = 8;

AxisValue axis_of(const nlohmann::json& json) {
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  return json.get<std::string>();
}

/// A number of threads or of rows, checked to fit an int.
int count_of(const nlohmann::json& json, int least = 1) {
  const double number = json.is_number_integer() ? json.get<double>() : -1;
  if (number < least || number > std::numeric_limits<int>::max()) {
    throw InputError("holds " + io::impl::printable(json.dump()) + " as a count");
  }
  return json.get<int>();
}

Json to_json(const TunedTile& tuned) {
  Json axes = Json::object();
  for (const auto& [name, value] : tuned.axes) axes[name] = io::impl::json_of<Json>(value);
  Json json = {{"op", tuned.op},
               {"pass", tuned.pass},
               {"variant", tuned.variant},
               {"device", tuned.device},
               {"backend", name_of(tuned.backend)},
               {"threads", tuned.threads},
               {"dtype", name_of(tuned.dtype)},
               {"axes", axes},
               {"tile", tuned.tile},
               {"time_s", tuned.time_s.median},
               {"default_tile", tuned.usual},
               {"default_time_s", tuned.usual_time_s},
               {"machine", tuned.machine},
               {"code", tuned.code}};
  // JSON has no infinity, which is the end of the interval of one sample, and no NaN.
  const auto add = [&](const char* name, double value) {
    if (std::isfinite(value)) json[name] = value;
  };
  add("time_lo_s", tuned.time_s.lo);
  add("time_hi_s", tuned.time_s.hi);
  add("default_ratio", tuned.usual_ratio);
  return json;
}

/// Throws the JSON library's exceptions, and InputError for an unknown name or extent.
TunedTile from_json(const nlohmann::json& json) {
  TunedTile tuned;
  tuned.op = json.at("op").get<std::string>();
  tuned.pass = json.at("pass").get<std::string>();
  tuned.variant = json.at("variant").get<std::string>();
  tuned.device = json.at("device").get<std::string>();
  const auto backend = backend_from_name(json.at("backend").get<std::string>());
  const auto dtype = dtype_from_name(json.at("dtype").get<std::string>());
  if (!backend || !dtype) throw InputError("unknown backend or dtype");
  tuned.backend = *backend;
  tuned.dtype = *dtype;
  tuned.threads = count_of(json.at("threads"), 0);  // 0: on a device
  for (const auto& [name, value] : json.at("axes").items()) tuned.axes[name] = axis_of(value);
  const auto tile = [&](const char* key) {
    Setting setting;
    for (const auto& extent : json.at(key).get_ref<const nlohmann::json::array_t&>())
      setting.push_back(count_of(extent));
    return setting;
  };
  tuned.tile = tile("tile");
  tuned.usual = tile("default_tile");
  const double time_s = json.at("time_s").get<double>();
  tuned.time_s = {.median = time_s,
                  .lo = json.value("time_lo_s", 0.0),
                  .hi = json.value("time_hi_s", std::numeric_limits<double>::infinity())};
  tuned.usual_time_s = json.at("default_time_s").get<double>();
  tuned.usual_ratio = json.value("default_ratio", 0.0);
  tuned.machine = json.value("machine", std::string());
  tuned.code = json.value("code", std::string());
  return tuned;
}

bool same_kernel_anywhere(const TunedTile& a, const TunedTile& b) {
  return a.op == b.op && a.pass == b.pass && a.variant == b.variant && a.backend == b.backend &&
         a.threads == b.threads && a.dtype == b.dtype;
}

bool same_kernel(const TunedTile& a, const TunedTile& b) {
  return a.device == b.device && same_kernel_anywhere(a, b);
}

/// "other code (0123456789abcdef, this program has fedcba9876543210)"; empty where both are the
/// same.
std::string difference(const std::string& what, const std::string& then, const std::string& now) {
  if (then == now) return {};
  const auto named = [](const std::string& text) { return text.empty() ? "not recorded" : text; };
  return "another " + what + " (" + io::impl::printable(named(then)) + ", here " + named(now) + ")";
}

double distance(const AxisValue& a, const AxisValue& b) {
  constexpr double other_choice = 8;
  const auto* x = std::get_if<std::int64_t>(&a);
  const auto* y = std::get_if<std::int64_t>(&b);
  if (x == nullptr || y == nullptr || *x < 0 || *y < 0) return a == b ? 0 : other_choice;
  return std::abs(std::log2((static_cast<double>(*x) + 1) / (static_cast<double>(*y) + 1)));
}

double distance(const TunedTile& a, const TunedTile& b) {
  double sum = 0;
  for (const auto& [name, value] : a.axes) {
    const auto other = b.axes.find(name);
    if (other != b.axes.end()) sum += distance(value, other->second);
  }
  return sum;
}

/// The tiles of an operator's variants, over the backends and passes of this build.
struct Listed {
  std::vector<std::string> variants, tiles;
};

Listed tiled_variants(const Operator& op) {
  Listed listed;
  for_each_variant(op, [&](const VariantInfo& info) {
    if (info.settings.empty()) return;
    add_once(listed.variants, info.name);
    for (const Setting& tile : info.settings) add_once(listed.tiles, to_text(tile));
  });
  return listed;
}

}  // namespace

TunedTile tile_key(const Operator& op, const Point& point, const std::string& variant) {
  TunedTile key;
  key.op = op.name();
  key.pass = point.pass;
  key.variant = variant;
  key.device = device_name(point.backend);
  key.backend = point.backend;
  key.threads = point.threads;
  key.dtype = point.dtype;
  key.axes = point.values;
  key.machine = machine_text(point.backend);
  if (const Code* code = find_code(key.op, key.pass, variant)) key.code = code->name;
  return key;
}

Tuning Tuning::read(const std::filesystem::path& path) {
  Tuning tuning;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return tuning;
  const auto refuse = [&](const std::string& what) {
    return InputError(path.string() + ": is no tuning file (" + what +
                      "); expected the JSON that katt tune writes");
  };
  const std::string text = io::impl::read_text(path, max_tuning_bytes, "the JSON of katt tune");
  try {
    const nlohmann::json json = io::impl::parse_json(path.string(), text, max_depth);
    if (json.at("schema") != schema) throw InputError("another schema");
    for (const nlohmann::json& entry : json.at("tiles")) tuning.put(from_json(entry));
  } catch (const std::exception& problem) {
    throw refuse(io::impl::printable(problem.what()));
  }
  return tuning;
}

std::string Tuning::json() const {
  Json tiles = Json::array();
  for (const TunedTile& tile : tiles_) tiles.push_back(to_json(tile));
  return Json{{"schema", schema}, {"tiles", tiles}}.dump(1);
}

void Tuning::update(const std::filesystem::path& path, std::span<const TunedTile> tiles) {
  const io::FileLock lock(path, io::FileLock::IfTaken::wait);
  Tuning tuning = read(path);
  for (const TunedTile& tile : tiles) tuning.put(tile);
  io::write_file(path, tuning.json() + "\n");
}

void Tuning::put(TunedTile tile) {
  for (TunedTile& known : tiles_) {
    if (same_kernel(known, tile) && known.axes == tile.axes) {
      known = std::move(tile);
      return;
    }
  }
  tiles_.push_back(std::move(tile));
}

const TunedTile* Tuning::nearest(const Operator& op, const TunedTile& key) const {
  std::vector<Setting> listed;
  for (const VariantInfo& info : op.variants(key.backend, key.pass)) {
    if (info.name == key.variant) listed = info.settings;
  }
  const TunedTile* nearest = nullptr;
  double least = 0;
  for (const TunedTile& tuned : tiles_) {
    if (!same_kernel(tuned, key)) continue;
    if (std::find(listed.begin(), listed.end(), tuned.tile) == listed.end()) continue;
    const double far = distance(tuned, key);
    if (nearest != nullptr && far >= least) continue;
    nearest = &tuned;
    least = far;
  }
  return nearest;
}

std::optional<Setting> Tuning::find(const Operator& op, const Point& point,
                                    const std::string& variant) const {
  const TunedTile* tuned = nearest(op, tile_key(op, point, variant));
  return tuned == nullptr ? std::nullopt : std::optional(tuned->tile);
}

std::string Tuning::remark(const Operator& op, const Point& point,
                           const std::string& variant) const {
  const TunedTile key = tile_key(op, point, variant);
  const std::string kernel =
      key.op + " " + key.pass + " " + variant + " " + std::string(name_of(key.dtype));
  const std::string again = "; katt tune " + key.op + " measures again";
  if (const TunedTile* tuned = nearest(op, key)) {
    std::vector<std::string> changes;
    for (std::string change : {difference("machine", tuned->machine, key.machine),
                               difference("code", tuned->code, key.code)}) {
      if (!change.empty()) changes.push_back(std::move(change));
    }
    if (changes.empty()) return {};
    return kernel + ": the tile is stale, tuned with " + join(changes, " and ") + again;
  }
  for (const TunedTile& tuned : tiles_) {
    if (!same_kernel_anywhere(tuned, key) || tuned.device == key.device) continue;
    return kernel + ": tuned on another machine only (" + io::impl::printable(tuned.device) +
           ", here " + key.device + "), the default runs" + again;
  }
  return {};
}

std::optional<std::filesystem::path> usual_tuning_file() {
  const auto folder = [](const char* name) {
    const char* value = std::getenv(name);
    const std::filesystem::path path(value == nullptr ? "" : value);
    return path.is_absolute() ? path : std::filesystem::path();  // XDG ignores relative paths
  };
  if (const auto config = folder("XDG_CONFIG_HOME"); !config.empty()) {
    return config / "katt" / "tuning.json";
  }
  const auto home = folder("HOME");
  if (home.empty()) return std::nullopt;
  return home / ".config" / "katt" / "tuning.json";
}

bool asks_for_tuning(std::span<const SweepEntry> entries) {
  for (const SweepEntry& entry : entries) {
    for (const AxisText& axis : entry.axes) {
      if (axis.key != "tile") continue;
      const auto tiles = split(axis.text, ',');
      if (std::find(tiles.begin(), tiles.end(), "auto") != tiles.end()) return true;
    }
  }
  return false;
}

void ask_for_all_tiles(std::span<SweepEntry> entries, const Registry& registry) {
  for (SweepEntry& entry : entries) {
    const Listed listed = tiled_variants(*entry.op);
    if (listed.tiles.empty()) {
      std::vector<std::string> tiled;
      for (const Operator* op : registry.all()) {
        if (!tiled_variants(*op).tiles.empty()) tiled.push_back(op->name());
      }
      throw InputError(entry.op->name() + ": has no variant with tiles; expected one of " +
                       join(tiled, ", "));
    }
    std::erase_if(entry.axes, [](const AxisText& axis) {
      return axis.key == "tile" && axis.text == "auto";  // what is tuned is no answer yet
    });
    const auto names = [&](std::span<const std::string> keys) {
      return std::any_of(entry.axes.begin(), entry.axes.end(), [&](const AxisText& axis) {
        return std::find(keys.begin(), keys.end(), axis.key) != keys.end();
      });
    };
    const auto add = [&](const char* key, const std::vector<std::string>& values) {
      entry.axes.push_back({.key = key, .text = join(values, ","), .where = key});
    };
    if (!names(std::vector<std::string>{"variant"})) add("variant", listed.variants);
    if (!names(std::vector<std::string>{"tile", "tile_q", "tile_kv"})) add("tile", listed.tiles);
  }
}

}  // namespace katt::bench
