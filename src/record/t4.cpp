#include "record/t4.hpp"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "io/json_input.hpp"
#include "record/json.hpp"
#include "record/row_cells.hpp"

namespace katt::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double ms = 1e3;  // in a second

/// The parameters of a row's variant; empty where it has none, or did not run here.
Json configuration(const RowCells& cells) {
  Json parameters = Json::object();
  for (const char* name : {"tile_q", "tile_kv"}) {
    if (const std::int64_t value = cells.integer(name); value > 0) parameters[name] = value;
  }
  return parameters;
}

const char* invalidity(const RowCells& cells) {
  const std::string& status = cells.text("status");
  if (status == "ok") return "correct";
  if (status == "skipped") return "constraints";
  // The words of testing::Comparison::result().
  const bool is_mismatch = cells.text("reason").find("checked values differ") != std::string::npos;
  return is_mismatch ? "correctness" : "runtime";
}

Json problem(const Registry& registry, const RowCells& cells) {
  Json problem = Json::object();
  for (const char* name : {"op", "pass", "variant", "backend", "dtype", "threads"}) {
    problem[name] = io::impl::json_of<Json>(cells.cell(name));
  }
  for (const AxisSpec& axis : registry.find(cells.text("op")).axes()) {
    problem[axis.name] = io::impl::json_of<Json>(cells.cell(axis.name));
  }
  return problem;
}

Json measurements(const RowCells& cells, bool is_ok) {
  Json list = Json::array();
  const auto add = [&](const char* name, double value, const char* unit) {
    if (std::isfinite(value)) list.push_back({{"name", name}, {"value", value}, {"unit", unit}});
  };
  if (!is_ok) return list;
  add("time", cells.real("time_s") * ms, "ms");
  add("time_lo", cells.real("time_lo_s") * ms, "ms");
  add("time_hi", cells.real("time_hi_s") * ms, "ms");
  add("runs_a_sample", static_cast<double>(cells.integer("inner")), "");
  add("max_abs_err", cells.real("max_abs_err"), "");
  return list;
}

Json result(const Registry& registry, const RowCells& cells, const io::Row& row,
            const std::string& timestamp) {
  const bool is_ok = cells.text("status") == "ok";
  Json runtimes = Json::array();
  double benchmark = 0;
  for (const double sample : row.samples_s) {
    runtimes.push_back(sample * ms);
    benchmark += sample * ms * static_cast<double>(cells.integer("inner"));
  }
  return {{"timestamp", timestamp},
          {"configuration", configuration(cells)},
          {"objectives", {"time"}},
          {"times", {{"benchmark", benchmark}, {"runtimes", std::move(runtimes)}}},
          {"invalidity", invalidity(cells)},
          {"correctness", is_ok ? 1 : 0},
          {"measurements", measurements(cells, is_ok)},
          {"problem", problem(registry, cells)}};
}

}  // namespace

std::string t4_json(const Registry& registry, const std::vector<io::Column>& columns,
                    std::span<const io::Row> rows, const io::Attributes& run) {
  Json metadata = {{"timeunit", "milliseconds"}};
  std::string timestamp;
  for (const auto& [name, value] : run) {
    const auto* text = std::get_if<std::string>(&value);
    if (name == "started_at" && text != nullptr) timestamp = *text;
    for (const char* kept : {"command", "started_at", "katt_version", "commit", "dirty", "compiler",
                             "device", "cpu_id", "cores", "isa", "os"}) {
      if (name == kept) metadata[name] = io::impl::json_of<Json>(value);
    }
  }
  Json results = Json::array();
  for (const io::Row& row : rows) {
    const RowCells cells(columns, row);
    if (configuration(cells).empty()) continue;
    results.push_back(result(registry, cells, row, timestamp));
  }
  return dumped(Json{{"schema_version", "1.0.0"},
                     {"metadata", std::move(metadata)},
                     {"results", std::move(results)}},
                1);
}

}  // namespace katt::bench
