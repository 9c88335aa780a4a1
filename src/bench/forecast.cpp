#include "bench/forecast.hpp"

#include <map>

#include "bench/machine.hpp"
#include "bench/text.hpp"

namespace katt::bench {
namespace {

/// "attention f32 seq_q=65536": the axes that are not at their fallback.
std::string point_text(const PlannedCase& planned) {
  std::string text = planned.op->name() + " " + std::string(name_of(planned.point.dtype));
  for (const AxisSpec& axis : planned.op->axes()) {
    const AxisValue& value = planned.point.values.at(axis.name);
    if (value != axis.fallback) text += " " + axis.name + "=" + to_text(value);
  }
  return text;
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
