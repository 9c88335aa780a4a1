#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "measure/ceilings.hpp"

namespace katt::bench {
namespace {

TEST(Ceiling, TheNearestLeavesLeastRoom) {
  const std::vector<io::CeilingRow> ceilings{{"fma_f32", 100, "FLOP/s", 2, 0},
                                             {"read_dram", 10, "B/s", 2, 1},
                                             {"fma_f32", 1, "FLOP/s", 1, 0}};
  const double huge = 1e15;
  const Work compute{.flops = 50 * huge, .bytes = huge, .compute_ceiling = "fma_f32"};
  NearestCeiling nearest = nearest_ceiling(ceilings, Backend::openmp, 2, compute, huge);
  EXPECT_EQ(nearest.name, "fma_f32");
  EXPECT_DOUBLE_EQ(nearest.fraction, 0.5);
  const Work memory{.flops = huge, .bytes = 8 * huge, .compute_ceiling = "fma_f32"};
  nearest = nearest_ceiling(ceilings, Backend::openmp, 2, memory, huge);
  EXPECT_EQ(nearest.name, "read_dram");
  EXPECT_DOUBLE_EQ(nearest.fraction, 0.8);
  EXPECT_TRUE(nearest.bandwidth);
  EXPECT_TRUE(nearest_ceiling({}, Backend::openmp, 2, memory, huge).name.empty());
}

TEST(Ceiling, ASlowerCacheOrMatrixUnitWasDisturbed) {
  using Found = std::vector<std::size_t>;
  std::vector<io::CeilingRow> ceilings{
      {"fma_f32", 470, "FLOP/s", 2, 0}, {"amx_bf16", 7000, "FLOP/s", 2, 0},
      {"read_l1", 600, "B/s", 2, 1},    {"copy_l1", 500, "B/s", 2, 1},
      {"read_l2", 240, "B/s", 2, 1},    {"copy_l2", 180, "B/s", 2, 1},
      {"read_dram", 44, "B/s", 2, 1},   {"copy_dram", 40, "B/s", 2, 1},
      {"read_l1", 30, "B/s", 1, 1},     {"stream_copy_dram", 1, "B/s", 2, 1}};
  EXPECT_EQ(contradicted_ceilings(ceilings), Found{});
  ceilings[1].value = 400;  // slower than the vectors
  ceilings[2].value = 42;   // a little below memory: noise
  ceilings[3].value = 100;  // below L2's copy, above memory's
  ceilings[4].value = 39;   // a read below memory's, and its copy not
  EXPECT_EQ(contradicted_ceilings(ceilings), (Found{1, 3, 4}));
  ceilings[6].value = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(contradicted_ceilings(ceilings), (Found{1, 3}));
}

TEST(Ceiling, WhatWasMeasuredInTurnReplacesTheBandwidth) {
  const std::vector<io::CeilingRow> ceilings{{"fma_f32", 100, "FLOP/s", 2, 0},
                                             {"read_dram", 10, "B/s", 2, 1}};
  const double huge = 1e15;
  const Work work{.flops = 50 * huge, .bytes = 8 * huge, .compute_ceiling = "fma_f32"};
  NearestCeiling nearest = nearest_ceiling(ceilings, Backend::openmp, 2, work, huge, 0.9);
  EXPECT_EQ(nearest.name, "read_dram");
  EXPECT_DOUBLE_EQ(nearest.fraction, 0.9);
  nearest = nearest_ceiling(ceilings, Backend::openmp, 2, work, huge, 0.4);
  EXPECT_EQ(nearest.name, "fma_f32");
  EXPECT_FALSE(nearest.bandwidth);
}

TEST(Ceiling, NoRateBeyondThemIsPossible) {
  const std::vector<io::CeilingRow> ceilings{{"fma_f32", 1e11, "FLOP/s", 1, 0},
                                             {"avx512_bf16", 2e11, "FLOP/s", 1, 0},
                                             {"read_l1", 4e11, "B/s", 1, 16384},
                                             {"read_l2", 1e11, "B/s", 1, 524288},
                                             {"read_dram", 1e10, "B/s", 1, 1 << 28}};
  const auto reason = [&](Dtype dtype, Work work, double time_s) {
    return impossible_rate(ceilings, Backend::serial, dtype, 1, work, time_s);
  };
  const Work product{.flops = 1e11, .bytes = 1, .compute_ceiling = "fma_f32"};
  EXPECT_EQ(reason(Dtype::f32, product, 1.0), "");
  EXPECT_EQ(reason(Dtype::f32, product, 0.95), "") << "noise";
  EXPECT_EQ(reason(Dtype::f32, product, 0.5),
            "0.2 TFLOP/s, expected at most the 0.1 TFLOP/s of fma_f32");
  EXPECT_EQ(reason(Dtype::f16, product, 0.5), "") << "units for f16 are twice as fast";
  EXPECT_NE(reason(Dtype::bf16, product, 0.1), "");
  const Work sum{.flops = 0, .bytes = 1e11, .compute_ceiling = ""};
  EXPECT_EQ(reason(Dtype::f32, sum, 2.0), "") << "a part may lie in a cache";
  EXPECT_NE(reason(Dtype::f32, sum, 0.1), "");
  EXPECT_EQ(impossible_rate({}, Backend::serial, Dtype::f32, 1, product, 1e-9), "");
  std::vector<io::CeilingRow> unknown = ceilings;
  unknown.back().value = std::numeric_limits<double>::quiet_NaN();  // its own level
  EXPECT_NE(impossible_rate(unknown, Backend::serial, Dtype::f32, 1, sum, 0.1), "");
  unknown.pop_back();
  EXPECT_EQ(impossible_rate(unknown, Backend::serial, Dtype::f32, 1, sum, 0.1), "")
      << "nobody knows how near the data lay";
}

}  // namespace
}  // namespace katt::bench
