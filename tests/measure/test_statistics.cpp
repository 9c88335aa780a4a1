#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "measure/statistics.hpp"

namespace katt::bench {
namespace {

/// 1, n, 2, n − 1, …: no two neighbours are on the same side of the median.
std::vector<double> one_to(int n) {
  std::vector<double> values;
  for (int i = 0; i < n; ++i) values.push_back(i % 2 == 0 ? 1 + i / 2 : n - i / 2);
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

TEST(Statistics, FewSamplesGiveStudentsInterval) {
  EXPECT_EQ(median_interval(one_to(1)).lo, 0);
  EXPECT_EQ(median_interval(one_to(1)).hi, std::numeric_limits<double>::infinity());
  // 1 and e²: logarithms of mean 1 and deviation √2, and 12.706205 · √2 / √2
  const Estimate two = median_interval(std::vector{1.0, std::exp(2.0)});
  EXPECT_NEAR(two.lo / std::exp(1 - 12.706205), 1, 1e-12);
  EXPECT_NEAR(two.hi / std::exp(1 + 12.706205), 1, 1e-12);
  for (int n = 2; n <= 5; ++n) {
    EXPECT_LE(median_interval(one_to(n)).lo, 1);
    EXPECT_GE(median_interval(one_to(n)).hi, n);
  }
}

TEST(Statistics, SamplesThatResembleTheirNeighboursCountLess) {
  std::vector<double> drift(40);
  std::iota(drift.begin(), drift.end(), 1.0);  // counts as 10: ranks 2 of 10, 8 of 40
  EXPECT_EQ(median_interval(drift).lo, 8);
  EXPECT_EQ(median_interval(drift).hi, 33);
  EXPECT_EQ(median_interval(one_to(40)).lo, 14);
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
