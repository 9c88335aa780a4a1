#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace katt::bench {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Largest k with P(Binomial(n, 1/2) ≤ k − 1) ≤ 2.5 %.
std::size_t lower_rank(std::size_t n) {
  const auto count = static_cast<double>(n);
  double cumulative = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const auto i = static_cast<double>(k);
    cumulative += std::exp(std::lgamma(count + 1) - std::lgamma(i + 1) -
                           std::lgamma(count - i + 1) - count * std::log(2.0));
    if (cumulative > 0.025) return k;
  }
  return n;
}

/// n (1 − r) / (1 + r), where r is the lag-1 correlation of the sides of the median on which samples lie.
std::size_t effective_count(std::span<const double> samples, double median) {
  const auto n = static_cast<std::int64_t>(samples.size());
  std::int64_t all = 0;
  std::int64_t alike = 0;
  int last = 0;
  for (const double sample : samples) {
    const int side = int{sample > median} - int{sample < median};
    all += side * side;
    alike += side * last;
    last = side;
  }
  const std::int64_t count = alike > 0 ? n * (all - alike) / (all + alike) : n;
  return static_cast<std::size_t>(std::max({count, n / 4, std::min<std::int64_t>(n, 3)}));
}

/// Student's interval of the mean of the logarithms, widened to hold every sample; for 2 to 5 independent samples.
Estimate student_interval(std::span<const double> sorted, double median, std::size_t count) {
  constexpr double quantile[] = {12.706205, 4.302653, 3.182446,
                                 2.776445};  // 97.5 %, 1 to 4 degrees
  const auto n = static_cast<double>(sorted.size());
  double mean = 0;
  for (const double sample : sorted) mean += std::log(sample);
  mean /= n;
  double squares = 0;
  for (const double sample : sorted) {
    const double deviation = std::log(sample) - mean;
    squares += deviation * deviation;
  }
  const double half = std::min(
      quantile[count - 2] * std::sqrt(squares / (n - 1)) / std::sqrt(static_cast<double>(count)),
      50.0);
  return {.median = median,
          .lo = std::min(std::exp(mean - half), sorted.front()),
          .hi = std::max(std::exp(mean + half), sorted.back())};
}

}  // namespace

Estimate median_interval(std::span<const double> samples) {
  if (samples.empty()) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    return {.median = nan, .lo = nan, .hi = nan};
  }
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const double median = n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
  if (n == 1) return {.median = median, .lo = 0, .hi = infinity};
  const std::size_t count = effective_count(samples, median);
  const std::size_t rank = lower_rank(count);
  if (rank == 0) return student_interval(sorted, median, count);
  const std::size_t index = std::max<std::size_t>(rank * n / count, 1);
  return {.median = median, .lo = sorted[index - 1], .hi = sorted[n - index]};
}

Estimate paired_ratio(std::span<const double> numerator, std::span<const double> denominator) {
  std::vector<double> ratios(std::min(numerator.size(), denominator.size()));
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] = numerator[i] / denominator[i];
  return median_interval(ratios);
}

}  // namespace katt::bench
