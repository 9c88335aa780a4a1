#include "plan/sweep_file.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "io/json_input.hpp"
#include "io/printable.hpp"
#include "plan/settings.hpp"
#include "plan/toml_document.hpp"

namespace katt::bench {
namespace {

/// People write sweep files by hand: a larger file is a mistake.
constexpr std::size_t max_file_bytes = 1 << 20;

class Reader {
 public:
  Reader(const std::filesystem::path& path, const Registry& registry)
      : name_(path.string()), registry_(registry) {}

  SweepRequest read() {
    request_.source =
        io::impl::read_text(name_, max_file_bytes, "a sweep file or the name of an operator");
    document_ = parse_toml(name_, request_.source);
    if (document_.sweeps) {
      for (const TomlTable& table : *document_.sweeps) {
        add_entry(table);
        own_keys(table, request_.entries.back());
      }
    } else {
      add_entry(document_.top);
    }
    for (const TomlKey& key : document_.top.keys) top_level(key);
    if (document_.axes) {
      for (const TomlKey& key : document_.axes->keys) default_axis(key, false);
    }
    apply_defaults();
    return std::move(request_);
  }

 private:
  [[noreturn]] void fail(int line, const std::string& message) const {
    throw InputError(name_ + ":" + std::to_string(line) + ": " + message);
  }

  void add_entry(const TomlTable& table) {
    const TomlKey* op = table.find("op");
    if (op == nullptr) op = document_.top.find("op");
    if (op == nullptr) {
      std::vector<std::string> known;
      for (const Operator* one : registry_.all()) known.push_back(one->name());
      static const std::vector<std::string> wanted{"op"};
      for (const TomlKey& key : table.keys) {
        if (!nearest(key.name, wanted).empty()) unknown(key, wanted);
      }
      fail(table.line, "key \"op\" is missing; expected one of " + join(known, ", "));
    }
    SweepEntry entry;
    entry.where = name_ + ":" + std::to_string(table.line);
    try {
      entry.op = &registry_.find(string_of(*op));
    } catch (const InputError& error) {
      fail(op->line, error.what());
    }
    const TomlKey* label = table.find("label");
    if (label == nullptr) label = document_.top.find("label");
    if (label != nullptr) entry.label = string_of(*label);
    for (const SweepEntry& other : request_.entries) {
      const auto stored = [](const std::string& text) { return text.substr(0, label_bytes); };
      if (stored(other.label) != stored(entry.label) || other.label == entry.label) continue;
      fail(label->line, "label: begins with the same " + std::to_string(label_bytes) +
                            " bytes, which result files hold, as that of " + other.where);
    }
    request_.entries.push_back(std::move(entry));
  }

  /// Axes of a [[sweep]] table.
  void own_keys(const TomlTable& table, SweepEntry& entry) {
    for (const TomlKey& key : table.keys) {
      if (key.name == "op" || key.name == "label") continue;
      if (!axis_of_key(*entry.op, canonical_key(key.name))) {
        auto known = axis_keys(*entry.op);
        known.insert(known.end(), {"op", "label"});
        unknown(key, known);
      }
      entry.axes.push_back(axis(key));
    }
  }

  void top_level(const TomlKey& key) {
    if (key.name == "op" || key.name == "label") return;
    if (key.name == "title") {
      request_.title = string_of(key);
    } else if (key.name == "description") {
      request_.description = string_of(key);
    } else {
      default_axis(key, true);
    }
  }

  /// A setting, or an axis for every entry whose operator has it.
  void default_axis(const TomlKey& key, bool or_setting) {
    const AxisText typed = axis(key);
    if (std::any_of(request_.entries.begin(), request_.entries.end(), [&](const SweepEntry& entry) {
          return axis_of_key(*entry.op, typed.key).has_value();
        })) {
      defaults_.push_back(typed);
      return;
    }
    if (or_setting && set_setting(request_.settings, typed.key, typed.text, typed.where)) return;
    std::vector<std::string> known;
    if (or_setting) {
      known = {"title", "description", "op",      "label",    "sweep",
               "axes",  "cold",        "profile", "untrusted"};
      for (const SettingSpec& setting : setting_specs()) known.push_back(setting.key);
    }
    for (const SweepEntry& entry : request_.entries) {
      for (const std::string& axis_key : axis_keys(*entry.op)) add_once(known, axis_key);
    }
    unknown(key, known);
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

  AxisText axis(const TomlKey& key) const {
    return {.key = canonical_key(key.name),
            .text = key.text,
            .where = name_ + ":" + std::to_string(key.line) + ": " + io::impl::printable(key.name)};
  }

  [[noreturn]] void unknown(const TomlKey& key, const std::vector<std::string>& known) const {
    const std::string near = suggestion(canonical_key(key.name), known);
    fail(key.line, "key \"" + io::impl::printable(key.name) + "\" is unknown; " +
                       (near.empty() ? "expected one of " + join(known, ", ") : near));
  }

  std::string string_of(const TomlKey& key) const {
    if (!key.is_string)
      fail(key.line, "key \"" + io::impl::printable(key.name) + "\": expected a string");
    return key.text;
  }

  std::string name_;
  const Registry& registry_;
  TomlDocument document_;
  SweepRequest request_;
  std::vector<AxisText> defaults_;
};

}  // namespace

SweepRequest read_sweep_file(const std::filesystem::path& path, const Registry& registry) {
  return Reader(path, registry).read();
}

}  // namespace katt::bench
