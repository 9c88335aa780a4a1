#include "sweep/progress.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "core/text.hpp"
#include "io/printable.hpp"
#include "measure/profile.hpp"

namespace katt::bench {
namespace {

/// Share of the time above which a machine counts as busy.
constexpr double busy_share = 0.1;

std::string config_text(const RowResult& row) {
  return row.resolved.variant +
         (row.resolved.setting.empty() ? "" : " " + to_text(row.resolved.setting));
}

/// The row to show: the fastest row besides the baseline, else the baseline.
const RowResult* best_of(std::span<const RowResult> rows) {
  const RowResult* best = nullptr;
  for (const RowResult& row : rows) {
    if (!row.is_sound()) continue;
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

/// "±1.2 %", or a word when the interval is too wide.
std::string width_text(double relative) {
  if (!(relative < 1)) return "±100 % and more: too uncertain";
  return "±" + fixed(100 * relative, 1) + " %";
}

}  // namespace

void Progress::begin(std::span<const PlannedCase> plan, double seconds) {
  cases_ = plan.size();
  done_ = configs_done_ = configs_left_ = 0;
  watch_ = {};
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
  note(counted_text(cases_, "point") + ", " + counted_text(configs_left_, "row") +
       ", at most about " + human_duration(seconds));
  if (const double load = load_average(); load >= machine().cores) {
    note("warning: the load average is " + fixed(load, 1) + " on " +
         counted_text(static_cast<std::size_t>(machine().cores), "processor") +
         ": other programs run, times are uncertain; trust ratios within a case");
  }
  before_ = processor_time();
}

void Progress::doing(const std::string& what) { activity_.begin(what); }

void Progress::doing(const PlannedCase& planned, const std::string& what) {
  activity_.begin(describe(planned) + ": " + what);
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
    // An axis with the value of the axis that it follows adds nothing.
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
    line += config_text(*best) + " " + human_seconds(best->time_s.median) + " " +
            width_text(best->time_s.relative_half_width());
    if (!best->baseline && std::isfinite(best->speedup.median)) {
      line += ", " + fixed(best->speedup.median, best->speedup.median < 10 ? 2 : 1) + "x " +
              std::string(baseline_name(rows));
    }
    if (std::isfinite(best->paired.median) && !planned.paired.is_reference) {
      line += ", " + fixed(best->paired.median, 2) + "x " + planned.paired.to;
    }
  }
  if (const auto failed = with(Status::Code::failed); failed > 0) {
    const auto first = std::find_if(rows.begin(), rows.end(), [](const RowResult& row) {
      return row.status.code() == Status::Code::failed;
    });
    line += (line.ends_with(": ") ? "" : ", ") + std::to_string(failed) + " FAILED (" +
            config_text(*first) + ": " + truncated(first->status.reason(), 120) + ")";
  }
  for (const RowResult& row : rows) {
    if (row.suspicion.empty()) continue;
    line +=
        (line.ends_with(": ") ? "" : ", ") + config_text(row) + " SUSPECT (" + row.suspicion + ")";
  }
  if (const auto skipped = with(Status::Code::skipped); skipped > 0) {
    line += (line.ends_with(": ") ? "" : ", ") + std::to_string(skipped) + " skipped";
  }
  const ProcessorTime now_used = processor_time();
  if (const double share = waited_share(before_, now_used); share > busy_share) {
    line += ", busy: other programs took " + fixed(100 * share, 0) + " % of the time";
  }
  before_ = now_used;
  if (configs_left_ > 0) {
    line += "; left " + human_duration(watch_.seconds() / static_cast<double>(configs_done_) *
                                       static_cast<double>(configs_left_));
  }
  note(line);
  is_verbose_ ? tell_rows(rows) : tell_reasons(rows);
  for (const RowResult& row : rows) {
    if (row.profile.runs > 0) note("    " + config_text(row) + ": " + shares_text(row.profile));
  }
}

void Progress::tell_reasons(std::span<const RowResult> rows) {
  constexpr std::size_t most = 12;
  for (const RowResult& row : rows) {
    if (row.status.code() != Status::Code::skipped || told_.size() > most) continue;
    // Numbers differ from point to point, so this ignores them: each reason is printed once.
    std::string kind = row.resolved.variant + row.status.reason();
    std::erase_if(kind, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
    if (!told_.insert(kind).second) continue;
    note(told_.size() > most ? "    further reasons are in the column reason"
                             : "    " + config_text(row) + " skipped: " + row.status.reason());
  }
}

void Progress::tell_rows(std::span<const RowResult> rows) {
  for (const RowResult& row : rows) {
    std::string line = "    " + config_text(row) + ": ";
    if (!row.is_sound()) {
      note(line + row.status_name() + ": " + row.reason());
      continue;
    }
    line += human_seconds(row.time_s.median) + " " + width_text(row.time_s.relative_half_width());
    if (!row.baseline && std::isfinite(row.speedup.median)) {
      line += ", " + fixed(row.speedup.median, 2) + "x " + std::string(baseline_name(rows));
    }
    note(line + ", " + counted_text(row.samples_s.size(), "sample"));
  }
}

void Progress::note(const std::string& line) {
  if (stream_ == nullptr) return;
  activity_.end();
  std::fprintf(stream_, "%s\n", io::impl::escaped(line).c_str());
  std::fflush(stream_);
}

}  // namespace katt::bench
