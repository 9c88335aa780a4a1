#pragma once

#include <span>

namespace katt::bench {

/// A median and the interval that holds the median of the population with at least 95 % confidence.
struct Estimate {
  double median = 0;
  double lo = 0;
  double hi = 0;

  /// Half of the interval's width relative to the median.
  [[nodiscard]] double relative_half_width() const {
    return median != 0 ? (hi - lo) / (2 * median) : 0;
  }
};

/// Median of positive samples with an interval that assumes nothing about their distribution (Conover, Practical
/// Nonparametric Statistics, §3.2): with n independent samples sorted, [x(k), x(n+1−k)] for the largest k with
/// P(Binomial(n, 1/2) < k) ≤ 2.5 %. Rounds of a busy machine resemble their neighbours: n counts as n (1 − r) / (1 + r)
/// samples, where r is the lag-1 correlation of the sides of the median on which they lie. Fewer than six samples cannot
/// reach 95 %: the interval is then Student's for the mean of the logarithms, widened to hold every sample. One sample
/// bounds nothing: [0, ∞]. NaN without samples.
///
/// katt_report/statistics.py is the same definition, to the last bit, at any level.
[[nodiscard]] Estimate median_interval(std::span<const double> samples);

/// Estimate of numerator(i) / denominator(i) over samples of the same round (same index), so that a
/// disturbance of both cancels. Extra samples of the longer one are ignored.
[[nodiscard]] Estimate paired_ratio(std::span<const double> numerator,
                                    std::span<const double> denominator);

}  // namespace katt::bench
