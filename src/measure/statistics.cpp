#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace katt::bench {
namespace {

/// Largest k with P(Binomial(n, 1/2) ≤ k − 1) ≤ 2.5 %, at least 1.
std::size_t lower_rank(std::size_t n) {
  const auto count = static_cast<double>(n);
  double cumulative = 0;
  std::size_t rank = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const auto i = static_cast<double>(k);
    cumulative += std::exp(std::lgamma(count + 1) - std::lgamma(i + 1) -
                           std::lgamma(count - i + 1) - count * std::log(2.0));
    if (cumulative > 0.025) break;
    rank = k + 1;
  }
  return std::max<std::size_t>(rank, 1);
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
  const std::size_t rank = lower_rank(n);
  return {.median = n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2,
          .lo = sorted[rank - 1],
          .hi = sorted[n - rank]};
}

Estimate paired_ratio(std::span<const double> numerator, std::span<const double> denominator) {
  std::vector<double> ratios(std::min(numerator.size(), denominator.size()));
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] = numerator[i] / denominator[i];
  return median_interval(ratios);
}

}  // namespace katt::bench
