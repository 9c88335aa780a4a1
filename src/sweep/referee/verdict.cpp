#include "sweep/referee/verdict.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/build_info.hpp"
#include "core/text.hpp"
#include "io/json_input.hpp"
#include "machine/machine.hpp"
#include "measure/statistics.hpp"
#include "record/json.hpp"

namespace katt::bench {
namespace {

using Json = nlohmann::ordered_json;

/// A number of the document; null where there is none.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json estimate(const Estimate& value) {
  return {{"median", number(value.median)}, {"lo", number(value.lo)}, {"hi", number(value.hi)}};
}

Json point_json(const Point& point) {
  Json axes = Json::object();
  for (const auto& [name, value] : point.values) axes[name] = io::impl::json_of<Json>(value);
  return {{"pass", point.pass},
          {"backend", name_of(point.backend)},
          {"threads", point.threads},
          {"dtype", name_of(point.dtype)},
          {"axes", std::move(axes)}};
}

/// "attention backward f32 seq_q=512 …" without axes of the default, which the plan knows.
std::string place_of(const PlannedCase& planned) {
  std::string text = planned.op->name() + " " + planned.point.pass + " " +
                     std::string(name_of(planned.point.dtype));
  for (const AxisSpec& axis : planned.op->axes()) {
    const AxisValue& value = planned.point.values.find(axis.name)->second;
    if (value != axis.fallback) text += " " + axis.name + "=" + to_text(value);
  }
  return text;
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

void Verdict::add(const PlannedCase& planned, std::span<const RowResult> rows) {
  const RowResult* own = nullptr;
  const RowResult* baseline = nullptr;
  const RowResult* best = nullptr;
  for (const RowResult& row : rows) {
    const std::string& variant = row.requested.variant;
    if (variant == task_.candidate) {
      own = &row;
      continue;
    }
    if (!row.is_sound()) {
      refused_.push_back({{"point", point_json(planned.point)},
                          {"variant", variant},
                          {"status", row.status_name()},
                          {"reason", row.reason()}});
      continue;
    }
    if (task_.baseline.empty() ? row.baseline : variant == task_.baseline) baseline = &row;
    if (planned.is_peer(row.requested)) continue;
    if (best == nullptr || row.time_s.median < best->time_s.median) best = &row;
  }
  if (own == nullptr) return;
  const auto ratio_to = [&](const RowResult* other) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    return other != nullptr && own->is_sound() ? paired_ratio(other->samples_s, own->samples_s)
                                               : Estimate{nan, nan, nan};
  };
  const Estimate ratio = ratio_to(baseline);
  const Estimate to_best = ratio_to(best);
  const auto named = [&](const Estimate& value, const RowResult* other) {
    Json json = estimate(value);
    json["to"] = other != nullptr ? Json(other->resolved.variant) : Json();
    if (other != nullptr && !other->resolved.setting.empty())
      json["setting"] = to_text(other->resolved.setting);
    return json;
  };
  Json point = point_json(planned.point);
  point["status"] = own->status_name();
  point["reason"] = own->reason();
  point["time_s"] = estimate(own->time_s);
  point["samples"] = own->samples_s.size();
  point["max_abs_err"] = number(own->worst_abs_err);
  point["mean_abs_err"] = number(own->mean_abs_err);
  point["ratio"] = named(ratio, baseline);
  point["ratio_to_best"] = named(to_best, best);
  point["ceiling"] = {{"name", own->ceiling.name}, {"fraction", number(own->ceiling.fraction)}};
  point["memory_bytes"] = own->total ? Json(own->total->total()) : Json();
  points_.push_back(std::move(point));
  if (own->status.code() == Status::Code::skipped) {
    if (own->lacked_memory) doubts_.push_back(place_of(planned) + ": " + own->reason());
    return;
  }
  ++judged_;
  if (std::isfinite(ratio.median)) ratios_.push_back(ratio.median);
  if (std::isfinite(to_best.median)) ratios_to_best_.push_back(to_best.median);
  hold_against_limits(place_of(planned), *own, ratio);
}

void Verdict::hold_against_limits(const std::string& where, const RowResult& row,
                                  const Estimate& ratio) {
  const auto refuse = [&](const std::string& what) { reasons_.push_back(where + ": " + what); };
  if (!row.is_sound()) return refuse(row.status_name() + ": " + row.reason());
  if (task_.least_ratio > 0 && !std::isfinite(ratio.median)) {
    doubts_.push_back(where + ": no ratio, since the baseline has no time here");
  } else if (task_.least_ratio > 0 && ratio.lo < task_.least_ratio) {
    auto& reasons = ratio.hi < task_.least_ratio ? reasons_ : doubts_;
    reasons.push_back(where + ": ratio " + short_number(ratio.median) + " [" +
                      short_number(ratio.lo) + ", " + short_number(ratio.hi) +
                      "], expected at least " + short_number(task_.least_ratio));
  }
  const double bytes =
      row.total ? static_cast<double>(row.total->total()) : std::numeric_limits<double>::infinity();
  if (std::isfinite(task_.most_bytes) && !(bytes <= task_.most_bytes)) {
    refuse("memory " + (row.total ? human_bytes(bytes) : "unknown") + ", expected at most " +
           human_bytes(task_.most_bytes));
  }
  if (!(row.worst_abs_err <= task_.most_error)) {
    refuse("max_abs_err " + short_number(row.worst_abs_err) + ", expected at most " +
           short_number(task_.most_error));
  }
}

std::string Verdict::status(bool interrupted) const {
  if (!reasons_.empty()) return "rejected";
  if (interrupted) return "interrupted";
  if (!doubts_.empty()) return "undecided";
  return judged_ == 0 ? "unsupported" : "accepted";
}

std::vector<std::string> Verdict::reasons() const {
  std::vector<std::string> all = reasons_;
  all.insert(all.end(), doubts_.begin(), doubts_.end());
  return all;
}

std::string Verdict::json(bool interrupted, double elapsed_s, const std::string& sha256,
                          const std::string& about) const {
  const BuildInfo& build = build_info();
  const auto limit = [](double value, bool is_set) { return is_set ? Json(value) : Json(); };
  const Json document{
      {"schema", 1},
      {"status", status(interrupted)},
      {"reasons", reasons()},
      {"candidate",
       {{"name", task_.candidate},
        {"path", task_.library.string()},
        {"sha256", sha256},
        {"about", about},
        {"untrusted", task_.request.settings.untrusted}}},
      {"operator", task_.request.entries.front().op->name()},
      {"baseline", task_.baseline.empty() ? Json() : Json(task_.baseline)},
      {"limits",
       {{"ratio", limit(task_.least_ratio, task_.least_ratio > 0)},
        {"memory_bytes", limit(task_.most_bytes, std::isfinite(task_.most_bytes))},
        {"max_abs_err", limit(task_.most_error, std::isfinite(task_.most_error))},
        {"timeout_s", task_.request.settings.peer_timeout_s}}},
      {"geometric_mean",
       {{"ratio", number(geometric_mean(ratios_))},
        {"ratio_to_best", number(geometric_mean(ratios_to_best_))}}},
      {"points", points_},
      {"refused", refused_},
      {"machine", device_name(Backend::openmp)},
      {"katt", {{"version", build.version}, {"commit", build.commit}, {"modified", build.dirty}}},
      {"elapsed_s", elapsed_s}};
  return dumped(document, 2);
}

}  // namespace katt::bench
