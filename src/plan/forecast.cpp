#include "plan/forecast.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/text.hpp"
#include "machine/machine.hpp"

namespace katt::bench {
namespace {

/// "attention f32 seq_q=65536": the axes that are not at their fallback.
std::string point_text(const PlannedCase& planned) {
  std::string text = planned.op->name() + " " + std::string(name_of(planned.point.dtype));
  if (planned.point.pass != planned.op->passes().front()) text += " " + planned.point.pass;
  for (const AxisSpec& axis : planned.op->axes()) {
    const AxisValue& value = planned.point.values.at(axis.name);
    if (value != axis.fallback) text += " " + axis.name + "=" + to_text(value);
  }
  return text;
}

/// Rows of a case, as far as the plan knows them without its inputs.
struct Prospect {
  std::vector<std::string> refusals;  ///< a row each; "" where it can run
  std::size_t bytes = 0;              ///< of the rows that can run

  [[nodiscard]] std::size_t runnable() const {
    return static_cast<std::size_t>(std::ranges::count(refusals, std::string()));
  }
};

Prospect prospect_of(const PlannedCase& planned) {
  Prospect prospect;
  const std::size_t available = available_memory(planned.point.backend);
  for (const Config& config : planned.configs) {
    std::string reason = unlisted_reason(planned, config);
    if (reason.empty() && !planned.is_peer(config)) {
      reason = planned.op->supports(planned.point, config).reason();
    }
    if (reason.empty()) {
      const Footprint forecast = footprint(planned, config);
      const std::size_t needed = std::max(prospect.bytes, forecast.tensors) + own_bytes(forecast);
      if (needed > available) reason = memory_reason(needed, available);
      else prospect.bytes = needed;
    }
    prospect.refusals.push_back(std::move(reason));
  }
  return prospect;
}

/// Seconds at half of the machine's speed.
double seconds_of_a_run(const PlannedCase& planned, std::span<const io::CeilingRow> ceilings) {
  const Point& point = planned.point;
  const bool on_device = point.backend == Backend::cuda;
  double flops_s = on_device ? 1e13 : 2e10 * std::max(point.threads, 1);
  double bytes_s = on_device ? 1e12 : 1e10;
  for (const io::CeilingRow& ceiling : ceilings) {
    if (ceiling.threads != point.threads || !(ceiling.value > 0)) continue;
    if (ceiling.name == "fma_f32") flops_s = ceiling.value;
    if (ceiling.name == "read_dram") bytes_s = ceiling.value;
  }
  const auto infos = planned.op->variants(point.backend, point.pass);
  const Footprint sizes = planned.op->footprint(point, {.variant = infos.front().name});
  const auto bytes = static_cast<double>(sizes.tensors + sizes.outputs);
  // FLOPs of products of square matrices, when only the case knows the real count.
  const Work work = planned.op->work(point).value_or(
      Work{.flops = 2 * std::pow(bytes / 12, 1.5), .bytes = bytes, .compute_ceiling = {}});
  return 2 * std::max(work.flops / flops_s, work.bytes / bytes_s);
}

}  // namespace

Footprint footprint(const PlannedCase& planned, const Config& config) {
  if (!planned.is_peer(config)) return planned.op->footprint(planned.point, config);
  const auto infos = planned.op->variants(planned.point.backend, planned.point.pass);
  Footprint bytes = planned.op->footprint(planned.point, {.variant = infos.front().name});
  bytes.workspace = bytes.tensors + bytes.outputs;
  return bytes;
}

std::size_t own_bytes(const Footprint& footprint) {
  return footprint.outputs + footprint.workspace;
}

std::string memory_reason(std::size_t needed, std::size_t available) {
  return "needs " + human_bytes(static_cast<double>(needed)) + ", " +
         human_bytes(static_cast<double>(available)) + " available";
}

double expected_s(std::span<const PlannedCase> plan, const Settings& settings,
                  std::span<const io::CeilingRow> ceilings) {
  constexpr double other_runs = 5;  // to prepare, to warm up, to verify
  constexpr double other_s = 0.02;
  double total_s = 0;
  for (const PlannedCase& planned : plan) {
    const double run_s = seconds_of_a_run(planned, ceilings);
    const double rounds_s = settings.rounds > 0
                                ? settings.rounds * std::max(run_s, settings.batch_s)
                                : std::max(settings.min_rounds * run_s, settings.budget_s);
    // before a sample of another point there is a run that does not count
    const double switches_s = planned.paired.to.empty() ? 0 : settings.min_rounds * run_s;
    total_s += static_cast<double>(prospect_of(planned).runnable()) *
               (rounds_s + switches_s + other_runs * run_s + other_s);
  }
  return total_s;
}

Outlook outlook(std::span<const PlannedCase> plan, const Settings& settings) {
  Outlook all;
  all.points = plan.size();
  all.seconds = expected_s(plan, settings);
  std::string group;
  std::size_t group_bytes = 0;
  for (const PlannedCase& planned : plan) {
    const Prospect prospect = prospect_of(planned);
    const bool together = !group.empty() && planned.paired.group == group;
    group = planned.paired.group;
    group_bytes = (together ? group_bytes : 0) + prospect.bytes;
    const bool fits = group_bytes <= available_memory(planned.point.backend);
    std::vector<std::string> rows;
    for (std::size_t i = 0; i < planned.configs.size(); ++i) {
      const Config& config = planned.configs[i];
      const std::string& refusal = prospect.refusals[i];
      rows.push_back(config.variant +
                     (config.setting.empty() ? "" : " " + to_text(config.setting)) +
                     (refusal.empty() ? "" : " (skipped: " + refusal + ")"));
    }
    all.rows += rows.size();
    all.skipped += rows.size() - prospect.runnable();
    all.memory_bytes = std::max(all.memory_bytes, fits ? group_bytes : prospect.bytes);
    all.lines.push_back(point_text(planned) + ": " + join(rows, ", ") + "; " +
                        human_bytes(static_cast<double>(prospect.bytes)) +
                        (planned.paired.to.empty() ? "" : ", paired with " + planned.paired.to));
  }
  return all;
}

void check_memory(std::span<const PlannedCase> plan) {
  std::map<Backend, std::size_t> available;
  bool any_fits = false;
  std::string smallest;
  std::size_t least = 0;
  for (const PlannedCase& planned : plan) {
    const Point& point = planned.point;
    const auto [memory, first] = available.try_emplace(point.backend, 0);
    if (first) memory->second = available_memory(point.backend);
    for (const Config& config : planned.configs) {
      if (!unlisted_reason(planned, config).empty()) {
        any_fits = true;  // it becomes a row with that reason
        continue;
      }
      const Footprint forecast = footprint(planned, config);
      const std::size_t least_needed = forecast.tensors + forecast.outputs;
      if (least_needed > memory->second) {
        throw InputError((planned.where.empty() ? "" : planned.where + ": ") + point_text(planned) +
                         ": the inputs and outputs alone need " +
                         human_bytes(static_cast<double>(least_needed)) +
                         ", expected at most the " +
                         human_bytes(static_cast<double>(memory->second)) + " of memory available");
      }
      const std::size_t needed = forecast.tensors + own_bytes(forecast);
      any_fits = any_fits || needed <= memory->second;
      if (smallest.empty() || needed < least) {
        least = needed;
        smallest = memory_reason(needed, memory->second);
      }
    }
  }
  if (!any_fits) throw InputError("no row of the sweep fits in memory: the smallest " + smallest);
}

}  // namespace katt::bench
