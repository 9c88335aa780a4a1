#include "bench/progress.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/profile.hpp"
#include "bench/text.hpp"

namespace katt::bench {
namespace {

std::string config_text(const RowResult& row) {
  return row.resolved.variant +
         (row.resolved.setting.empty() ? "" : " " + to_text(row.resolved.setting));
}

/// The row to show: the fastest that is not the baseline, else the baseline.
const RowResult* best_of(std::span<const RowResult> rows) {
  const RowResult* best = nullptr;
  for (const RowResult& row : rows) {
    if (!row.status.is_ok()) continue;
    const bool better = best == nullptr || (best->baseline && !row.baseline) ||
                        (best->baseline == row.baseline && row.time_s.median < best->time_s.median);
    if (better) best = &row;
  }
  return best;
}

std::string_view baseline_name(std::span<const RowResult> rows) {
  for (const RowResult& row : rows) {
    if (row.baseline) return row.requested.variant;
  }
  return {};
}

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

}  // namespace

void Progress::begin(std::span<const PlannedCase> plan) {
  cases_ = plan.size();
  done_ = configs_done_ = configs_left_ = 0;
  start_ = std::chrono::steady_clock::now();
  // By group and axis, the values that occur.
  std::map<std::string, std::map<std::string, std::set<std::string>>> seen;
  for (const PlannedCase& planned : plan) {
    configs_left_ += planned.configs.size();
    auto& axes = seen[group_of(planned)];
    for (const auto& [axis, value] : planned.point.values) axes[axis].insert(to_text(value));
    axes["threads"].insert(std::to_string(planned.point.threads));
    axes["backend"].emplace(name_of(planned.point.backend));
    axes["pass"].insert(planned.point.pass);
  }
  varying_.clear();
  for (const auto& [group, axes] : seen) {
    for (const auto& [axis, values] : axes) {
      if (values.size() > 1) varying_[group].insert(axis);
    }
  }
}

std::string Progress::group_of(const PlannedCase& planned) {
  return planned.op->name() + '\n' + planned.label;
}

std::string Progress::describe(const PlannedCase& planned) const {
  const Point& point = planned.point;
  const auto found = varying_.find(group_of(planned));
  const auto varies = [&](const std::string& axis) {
    return found != varying_.end() && found->second.contains(axis);
  };
  std::string text = planned.op->name();
  if (varies("pass")) text += " " + point.pass;
  if (!planned.label.empty()) text += " \"" + planned.label + "\"";
  if (varies("backend")) text += " " + std::string(name_of(point.backend));
  text += " " + std::string(name_of(point.dtype));
  if (varies("threads")) text += " threads=" + std::to_string(point.threads);
  for (const AxisSpec& axis : planned.op->axes()) {
    // An axis that repeats the one it follows says nothing new.
    const bool echo =
        !axis.follows.empty() && point.values.at(axis.name) == point.values.at(axis.follows);
    if (!varies(axis.name) || echo) continue;
    text += " " + axis.name + "=" + to_text(point.values.at(axis.name));
  }
  return text;
}

void Progress::finished(const PlannedCase& planned, std::span<const RowResult> rows) {
  ++done_;
  configs_done_ += rows.size();
  configs_left_ -= std::min(configs_left_, rows.size());
  if (stream_ == nullptr) return;
  std::string line = "[";
  const std::string total = std::to_string(cases_);
  const std::string now = std::to_string(done_);
  line += std::string(total.size() - std::min(total.size(), now.size()), ' ') + now + "/" + total;
  line += "] " + describe(planned) + ": ";
  const auto with = [&](Status::Code code) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const RowResult& row) { return row.status.code() == code; });
  };
  if (const RowResult* best = best_of(rows)) {
    line += config_text(*best) + " " + human_seconds(best->time_s.median) + " ±" +
            fixed(100 * best->time_s.relative_half_width(), 1) + " %";
    if (!best->baseline && std::isfinite(best->speedup.median)) {
      line += ", " + fixed(best->speedup.median, best->speedup.median < 10 ? 2 : 1) + "x " +
              std::string(baseline_name(rows));
    }
  }
  if (const auto failed = with(Status::Code::failed); failed > 0) {
    const auto first = std::find_if(rows.begin(), rows.end(), [](const RowResult& row) {
      return row.status.code() == Status::Code::failed;
    });
    line += (line.ends_with(": ") ? "" : ", ") + std::to_string(failed) + " FAILED (" +
            config_text(*first) + ": " + truncated(first->status.reason(), 120) + ")";
  }
  if (const auto skipped = with(Status::Code::skipped); skipped > 0) {
    line += (line.ends_with(": ") ? "" : ", ") + std::to_string(skipped) + " skipped";
  }
  if (configs_left_ > 0) {
    const double elapsed =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    line += "; left " + human_duration(elapsed / static_cast<double>(configs_done_) *
                                       static_cast<double>(configs_left_));
  }
  note(line);
  for (const RowResult& row : rows) {
    if (row.profile.runs > 0) note("    " + config_text(row) + ": " + shares_text(row.profile));
  }
}

void Progress::note(const std::string& line) const {
  if (stream_ == nullptr) return;
  std::fprintf(stream_, "%s\n", line.c_str());
  std::fflush(stream_);
}

}  // namespace katt::bench
