#include "sweep/referee/task.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "io/json_input.hpp"
#include "io/printable.hpp"
#include "plan/requests.hpp"
#include "plan/settings.hpp"

namespace katt::bench {
namespace {

constexpr std::size_t max_task_bytes = 1 << 20;
constexpr int max_depth = 4;

/// An object of the file whose keys are taken one by one; what is left at the end is unknown.
class Object {
 public:
  Object(std::string where, nlohmann::json json)
      : where_(std::move(where)), json_(std::move(json)) {
    if (!json_.is_object()) throw InputError(where_ + ": expected an object");
  }

  /// The value of a key; nothing where the file has none.
  std::optional<nlohmann::json> take(const std::string& key) {
    known_.push_back(key);
    const auto found = json_.find(key);
    if (found == json_.end()) return std::nullopt;
    nlohmann::json value = std::move(*found);
    json_.erase(found);
    return value;
  }
  std::optional<std::string> text(const std::string& key) {
    const auto value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_string()) fail(key, *value, "a string");
    return value->get<std::string>();
  }
  std::string required(const std::string& key, const std::string& expected) {
    const auto value = text(key);
    if (!value || value->empty())
      throw InputError(where_ + ": " + key + " is missing, expected " + expected);
    return *value;
  }
  std::optional<double> number(const std::string& key) {
    const auto value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_number() || !(value->get<double>() > 0)) fail(key, *value, "a number above 0");
    return value->get<double>();
  }
  std::optional<bool> flag(const std::string& key) {
    const auto value = take(key);
    if (!value) return std::nullopt;
    if (!value->is_boolean()) fail(key, *value, "true or false");
    return value->get<bool>();
  }
  /// A value, or a list of them, in the syntax of an axis.
  std::string axis(const std::string& key, const nlohmann::json& value) const {
    if (!value.is_array()) return item(key, value);
    std::vector<std::string> items;
    for (const nlohmann::json& one : value) items.push_back(item(key, one));
    return join(items, ",");
  }
  std::optional<std::string> list(const std::string& key) {
    const auto value = take(key);
    return value ? std::optional(axis(key, *value)) : std::nullopt;
  }
  [[nodiscard]] std::vector<std::pair<std::string, nlohmann::json>> rest() const {
    std::vector<std::pair<std::string, nlohmann::json>> rest;
    for (const auto& [key, value] : json_.items()) rest.emplace_back(key, value);
    return rest;
  }
  /// Throws when a key is left.
  void end() const {
    if (json_.empty()) return;
    const std::string key = json_.begin().key();
    const std::string near = suggestion(key, known_);
    throw InputError(where_ + ": key \"" + io::impl::printable(key) + "\" is unknown; " +
                     (near.empty() ? "expected one of " + join(known_, ", ") : near));
  }
  [[nodiscard]] std::string place(const std::string& key) const {
    return where_ + ": " + io::impl::printable(key);
  }

 private:
  [[nodiscard]] std::string item(const std::string& key, const nlohmann::json& value) const {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
    if (!value.is_number()) fail(key, value, "a number, a string, true, false, or a list of them");
    return value.dump();
  }
  [[noreturn]] void fail(const std::string& key, const nlohmann::json& value,
                         const std::string& expected) const {
    throw InputError(place(key) + ": holds " + io::impl::printable(truncated(value.dump(), 60)) +
                     ", expected " + expected);
  }

  std::string where_;
  nlohmann::json json_;
  std::vector<std::string> known_;
};

std::vector<AxisText> axes_of(Object& axes, const Operator& op) {
  std::vector<AxisText> typed;
  for (const auto& [key, value] : axes.rest()) {
    const std::string name = canonical_key(key);
    const bool is_own =
        name == "variant" || name == "peer" || name == "candidate" || name == "paired";
    if (is_own || !axis_of_key(op, name)) {
      const auto known = axis_keys(op);
      const std::string near = suggestion(name, known);
      throw InputError(axes.place(key) + ": is no axis of " + op.name() + "; " +
                       (near.empty() ? "expected one of " + join(known, ", ") : near));
    }
    typed.push_back({.key = name, .text = axes.axis(key, value), .where = axes.place(key)});
  }
  return typed;
}

}  // namespace

RefereeTask read_task(const std::filesystem::path& path, const Registry& registry) {
  const std::string name = path.string();
  const std::string text =
      io::impl::read_text(path, max_task_bytes, "a task of katt referee (JSON)");
  Object root(name, io::impl::parse_json(name, text, max_depth));
  RefereeTask task;
  task.where = name;
  task.request.source = text;
  SweepEntry entry;
  const std::string op = root.required("operator", "the name of an operator");
  try {
    entry.op = &registry.find(op);
  } catch (const InputError& error) {
    throw InputError(root.place("operator") + ": " + error.what());
  }
  const std::string library =
      root.required("candidate", "the path of a shared library or a file of Python");
  task.library = path.parent_path() / library;  // of an absolute path itself
  task.candidate = root.text("name").value_or(task.library.stem().string());
  if (!is_name(task.candidate)) {
    throw InputError(name + ": name: \"" + truncated(task.candidate, 40) +
                     "\" is no name for its rows, expected letters, digits and '_', at most 32");
  }
  if (auto axes = root.take("axes")) {
    Object named(root.place("axes"), std::move(*axes));
    entry.axes = axes_of(named, *entry.op);
  }
  const auto add = [&](const std::string& key, const std::string& axis) {
    if (const auto values = root.list(key)) {
      entry.axes.push_back({.key = axis, .text = *values, .where = root.place(key)});
    }
  };
  add("variants", "variant");
  add("peers", "peer");
  entry.axes.push_back({.key = "candidate",
                        .text = task.candidate + "=" + task.library.string(),
                        .where = root.place("candidate")});
  task.baseline = root.text("baseline").value_or("");
  task.request.settings.untrusted = root.flag("untrusted").value_or(true);
  double& timeout_s = task.request.settings.peer_timeout_s;
  timeout_s = 20;
  if (auto limits = root.take("limits")) {
    Object named(root.place("limits"), std::move(*limits));
    task.least_ratio = named.number("ratio").value_or(0);
    task.most_bytes = named.number("memory_bytes").value_or(task.most_bytes);
    task.most_error = named.number("max_abs_err").value_or(task.most_error);
    timeout_s = named.number("timeout_s").value_or(timeout_s);
    named.end();
  }
  if (auto measuring = root.take("measuring")) {
    Object named(root.place("measuring"), std::move(*measuring));
    for (const auto& [key, value] : named.rest()) {
      const std::string typed = named.axis(key, value);
      if (key == "untrusted" ||
          !set_setting(task.request.settings, canonical_key(key), typed, named.place(key))) {
        throw InputError(named.place(key) +
                         ": is no setting, expected rounds, min_rounds, budget_s, precision, seed, "
                         "bind, cold, peer_program or candidate_program");
      }
    }
  }
  root.end();
  task.request.entries.push_back(std::move(entry));
  return task;
}

}  // namespace katt::bench
