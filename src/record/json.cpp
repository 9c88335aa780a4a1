#include "record/json.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>

namespace katt::bench {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json, int indent) {
  return json.dump(indent, ' ', true, Json::error_handler_t::replace);
}

std::string environment_json() {
  Json json = Json::object();
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    if (text.starts_with("OMP_") || text.starts_with("KOKKOS_") || text.starts_with("OPENBLAS_") ||
        text.starts_with("KATT_HUGE_PAGES")) {
      json[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
    }
  }
  return dumped(json);
}

std::string settings_json(const Settings& settings) {
  Json json{{"rounds", settings.rounds},
            {"min_rounds", settings.min_rounds},
            {"max_rounds", settings.max_rounds},
            {"budget_s", settings.budget_s},
            {"precision", settings.precision},
            {"shortest_s", settings.shortest_s},
            {"batch_s", settings.batch_s},
            {"cold", settings.cold},
            {"bind", settings.bind},
            {"peer_timeout_s", settings.peer_timeout_s},
            {"seed", settings.seed},
            {"paired_goal", settings.paired_goal},
            {"race", settings.race}};
  if (!settings.score_rules.empty()) json["score_rules"] = settings.score_rules;
  return dumped(json);
}

std::string entries_json(std::span<const SweepEntry> entries) {
  Json list = Json::array();
  for (const SweepEntry& entry : entries) {
    Json axes = Json::object();
    for (const AxisText& axis : entry.axes) axes[axis.key] = axis.text;
    list.push_back({{"op", entry.op->name()}, {"label", entry.label}, {"axes", std::move(axes)}});
  }
  return dumped(list);
}

}  // namespace katt::bench
