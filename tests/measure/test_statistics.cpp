#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "measure/statistics.hpp"

namespace katt::bench {
namespace {

std::vector<double> one_to(int n) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

TEST(Statistics, MedianOfOddAndEven) {
  EXPECT_EQ(median_interval(std::vector{3.0, 1.0, 2.0}).median, 2);
  EXPECT_EQ(median_interval(std::vector{4.0, 1.0, 2.0, 3.0}).median, 2.5);
  EXPECT_TRUE(std::isnan(median_interval({}).median));
}

// Ranks of the 95 % interval of the median as tabulated (Conover, table A3; also GB/T 10092).
TEST(Statistics, IntervalHasTheTabulatedRanks) {
  const std::vector<std::pair<int, int>> ranks{{6, 1},   {8, 1},   {9, 2},   {11, 2}, {12, 3},
                                               {15, 4},  {17, 5},  {20, 6},  {25, 8}, {30, 10},
                                               {40, 14}, {50, 18}, {100, 40}};
  for (const auto& [n, rank] : ranks) {
    const Estimate estimate = median_interval(one_to(n));
    EXPECT_EQ(estimate.lo, rank) << n;
    EXPECT_EQ(estimate.hi, n + 1 - rank) << n;
  }
}

TEST(Statistics, FewSamplesGiveTheirRange) {
  for (int n = 1; n <= 5; ++n) {
    EXPECT_EQ(median_interval(one_to(n)).lo, 1);
    EXPECT_EQ(median_interval(one_to(n)).hi, n);
  }
}

TEST(Statistics, PairedRatioCancelsWhatSlowsBoth) {
  const std::vector<double> naive{2, 20, 2, 4, 8, 2, 2};
  const std::vector<double> flash{1, 10, 1, 2, 4, 1, 1};
  const Estimate ratio = paired_ratio(naive, flash);
  EXPECT_EQ(ratio.median, 2);
  EXPECT_EQ(ratio.lo, 2);
  EXPECT_EQ(ratio.hi, 2);
  EXPECT_TRUE(std::isnan(paired_ratio({}, flash).median));
}

RC_GTEST_PROP(StatisticsProperty, IntervalHoldsTheMedianAndOrderDoesNotMatter, ()) {
  const auto element = rc::gen::map(rc::gen::inRange(1, 100000), [](int n) { return n * 1e-5; });
  auto values = *rc::gen::nonEmpty(rc::gen::container<std::vector<double>>(element));
  const Estimate estimate = median_interval(values);
  RC_ASSERT(estimate.lo <= estimate.median && estimate.median <= estimate.hi);
  std::reverse(values.begin(), values.end());
  RC_ASSERT(median_interval(values).lo == estimate.lo);
}

}  // namespace
}  // namespace katt::bench
