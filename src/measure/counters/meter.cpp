#include "measure/counters/meter.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "machine/affinity.hpp"
#include "measure/statistics.hpp"

namespace katt::bench {
namespace {

/// Median of one of the counts over the rounds that have it.
double median_of(const std::vector<RunCounts>& counts, double RunCounts::*member) {
  std::vector<double> held;
  for (const RunCounts& one : counts) {
    if (std::isfinite(one.*member)) held.push_back(one.*member);
  }
  return median_interval(held).median;
}

}  // namespace

Effort EffortLog::summary() const {
  // The counters of energy advance about once a millisecond: in less time they say little.
  constexpr double least_s = 0.05;
  Effort effort;
  effort.throttled = throttled;
  if (seconds >= least_s && runs > 0) effort.joules = joules / runs;
  if (std::ranges::none_of(counts, [](const RunCounts& one) { return one.cycles > 0; })) {
    return effort;
  }
  for (const RunCounts& one : counts) effort.cycles.push_back(one.cycles);
  effort.ghz = median_of(counts, &RunCounts::ghz);
  effort.instructions = median_of(counts, &RunCounts::instructions);
  effort.llc_misses = median_of(counts, &RunCounts::llc_misses);
  return effort;
}

Meter::Meter(int threads, const CounterEvents& events, std::filesystem::path sys)
    : counters_(threads, events),
      energy_(sys),
      sys_(std::move(sys)),
      throttled_before_(throttle_count(allowed_processors(), sys_)) {}

void Meter::start() {
  energy_before_ = energy_.read();
  counts_before_ = counters_.read();  // last, and first in stop(): threads that wait spin
}

void Meter::stop(EffortLog& log, double seconds, int runs) {
  log.counts.push_back(counts_between(counts_before_, counters_.read(), runs));
  log.joules += energy_.joules_between(energy_before_, energy_.read());
  log.seconds += seconds * runs;
  log.runs += runs;
}

double Meter::throttled() const {
  const auto now = throttle_count(allowed_processors(), sys_);
  if (!now || !throttled_before_) return std::numeric_limits<double>::quiet_NaN();
  return *now > *throttled_before_ ? 1 : 0;
}

}  // namespace katt::bench
