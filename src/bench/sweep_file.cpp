#include "bench/sweep_file.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <toml++/toml.h>

#include "bench/settings.hpp"
#include "bench/text.hpp"

namespace katt::bench {
namespace {

class Reader {
 public:
  Reader(const std::filesystem::path& path, const Registry& registry)
      : name_(path.string()), registry_(registry) {}

  SweepRequest read() {
    request_.source = read_text();
    try {
      root_ = toml::parse(request_.source);
    } catch (const toml::parse_error& error) {
      throw InputError(name_ + ":" + std::to_string(error.source().begin.line) +
                       ": not valid TOML: " + std::string(error.description()));
    }
    read_entries();
    for (const auto& [key, node] : root_) top_level(std::string(key.str()), node);
    apply_defaults();
    return std::move(request_);
  }

 private:
  [[noreturn]] void fail(const toml::node& node, const std::string& message) const {
    throw InputError(name_ + ":" + std::to_string(node.source().begin.line) + ": " + message);
  }

  std::string read_text() const {
    std::error_code error;
    if (!std::filesystem::is_regular_file(name_, error)) {
      throw InputError(name_ + ": no such file; expected a sweep file or the name of an operator");
    }
    std::ifstream file(name_, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) throw InputError(name_ + ": cannot be read");
    return text.str();
  }

  /// The tables that are entries: [[sweep]], [sweep], or the top level itself.
  void read_entries() {
    toml::node* sweep = root_.get("sweep");
    if (sweep == nullptr) {
      add_entry(root_, root_);
    } else if (sweep->is_table()) {
      add_entry(*sweep->as_table(), *sweep);
      own_keys(*sweep->as_table(), request_.entries.back());
    } else if (const toml::array* tables = sweep->as_array(); tables != nullptr) {
      for (const toml::node& node : *tables) {
        if (!node.is_table()) fail(*sweep, "sweep: expected tables, [[sweep]]");
        add_entry(*node.as_table(), node);
        own_keys(*node.as_table(), request_.entries.back());
      }
    } else {
      fail(*sweep, "sweep: expected a table [sweep] or tables [[sweep]]");
    }
    if (request_.entries.empty()) fail(*sweep, "sweep: expected at least one table");
  }

  void add_entry(const toml::table& table, const toml::node& place) {
    const toml::node* op = table.get("op");
    if (op == nullptr) op = root_.get("op");
    if (op == nullptr) {
      std::vector<std::string> known;
      for (const Operator* one : registry_.all()) known.push_back(one->name());
      fail(place, "key \"op\" is missing; expected one of " + join(known, ", "));
    }
    SweepEntry entry;
    entry.where = name_ + ":" + std::to_string(place.source().begin.line);
    try {
      entry.op = &registry_.find(text_of(*op, "op"));
    } catch (const InputError& error) {
      fail(*op, error.what());
    }
    if (const toml::node* label = table.get("label")) entry.label = text_of(*label, "label");
    request_.entries.push_back(std::move(entry));
  }

  /// Axes of a [[sweep]] table.
  void own_keys(const toml::table& table, SweepEntry& entry) {
    for (const auto& [name, node] : table) {
      const std::string key = canonical_key(name.str());
      if (key == "op" || key == "label") continue;
      if (!axis_of_key(*entry.op, key)) {
        auto known = axis_keys(*entry.op);
        known.insert(known.end(), {"op", "label"});
        unknown(node, std::string(name.str()), known);
      }
      entry.axes.push_back(axis(std::string(name.str()), node));
    }
  }

  void top_level(const std::string& name, const toml::node& node) {
    const std::string key = canonical_key(name);
    if (key == "sweep" || key == "op" || key == "label") return;
    if (key == "title") {
      request_.title = text_of(node, key);
    } else if (key == "description") {
      request_.description = text_of(node, key);
    } else if (key == "axes") {
      if (!node.is_table()) fail(node, "axes: expected a table [axes]");
      for (const auto& [axis_name, value] : *node.as_table()) {
        default_axis(std::string(axis_name.str()), value, false);
      }
    } else {
      default_axis(name, node, true);
    }
  }

  /// A setting, or an axis for every entry whose operator has it.
  void default_axis(const std::string& name, const toml::node& node, bool or_setting) {
    const std::string key = canonical_key(name);
    const bool known = std::any_of(
        request_.entries.begin(), request_.entries.end(),
        [&](const SweepEntry& entry) { return axis_of_key(*entry.op, key).has_value(); });
    if (known) {
      defaults_.push_back(axis(name, node));
      return;
    }
    const AxisText typed = axis(name, node);
    if (or_setting && set_setting(request_.settings, key, typed.text, typed.where)) return;
    std::vector<std::string> keys;
    if (or_setting) {
      keys = {"title", "description", "op", "label", "sweep", "axes", "cold"};
      for (const SettingSpec& setting : setting_specs()) keys.push_back(setting.key);
    }
    for (const SweepEntry& entry : request_.entries) {
      for (const std::string& axis_key : axis_keys(*entry.op)) {
        if (std::find(keys.begin(), keys.end(), axis_key) == keys.end()) keys.push_back(axis_key);
      }
    }
    unknown(node, name, keys);
  }

  /// Defaults come first, so that an entry's own axes replace them.
  void apply_defaults() {
    for (SweepEntry& entry : request_.entries) {
      const std::vector<AxisText> own = std::move(entry.axes);
      entry.axes.clear();
      for (const AxisText& axis : defaults_) {
        if (axis_of_key(*entry.op, axis.key)) entry.axes.push_back(axis);
      }
      override_axes(entry, own);
    }
  }

  AxisText axis(const std::string& name, const toml::node& node) const {
    return {.key = canonical_key(name),
            .text = values_of(node, name),
            .where = name_ + ":" + std::to_string(node.source().begin.line) + ": " + name};
  }

  [[noreturn]] void unknown(const toml::node& node, const std::string& name,
                            const std::vector<std::string>& known) const {
    const std::string near = suggestion(canonical_key(name), known);
    fail(node, "key \"" + name + "\" is unknown; " +
                   (near.empty() ? "expected one of " + join(known, ", ") : near));
  }

  std::string text_of(const toml::node& node, const std::string& key) const {
    const auto* text = node.as_string();
    if (text == nullptr) fail(node, "key \"" + key + "\": expected a string");
    return text->get();
  }

  /// A value in the syntax of the command line.
  std::string values_of(const toml::node& node, const std::string& name) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
    if (const auto* real = node.as_floating_point()) return bench::to_text(real->get());
    if (const auto* truth = node.as_boolean()) return truth->get() ? "1" : "0";
    const toml::array* list = node.as_array();
    if (list == nullptr) {
      fail(node, "key \"" + name +
                     "\": expected an integer, a number, true or false, a string, or an array");
    }
    std::vector<std::string> items;
    for (const toml::node& item : *list) {
      if (item.is_array())
        fail(node, "key \"" + name + "\": expected an array without arrays in it");
      items.push_back(values_of(item, name));
    }
    return join(items, ",");
  }

  std::string name_;
  const Registry& registry_;
  toml::table root_;
  SweepRequest request_;
  std::vector<AxisText> defaults_;
};

}  // namespace

SweepRequest read_sweep_file(const std::filesystem::path& path, const Registry& registry) {
  return Reader(path, registry).read();
}

}  // namespace katt::bench
