#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/linear/gemm/column_major.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "tests/ops/gemm_problem.hpp"
#include "tile/bf16/bf16_units.hpp"

namespace katt::linear {
namespace {

using testing::product::alike;
using testing::product::expect_reference;
using testing::product::run;
using testing::product::Values;

/// A column-major product, as a BLAS computes it.
std::vector<float> column_major_product(const impl::ColumnMajorProduct& p, const float* first,
                                        const float* second) {
  const auto element = [](const float* matrix, const impl::ColumnMajor& shape, bool transposed,
                          std::int64_t row, std::int64_t column) {
    if (transposed) std::swap(row, column);
    EXPECT_TRUE(row < shape.rows && column < shape.columns);
    return matrix[column * shape.leading + row];
  };
  std::vector<float> result(static_cast<std::size_t>(p.result.columns * p.result.leading), -1.0F);
  const std::int64_t depth = p.trans_first ? p.first.rows : p.first.columns;
  for (std::int64_t column = 0; column < p.result.columns; ++column) {
    for (std::int64_t row = 0; row < p.result.rows; ++row) {
      float sum = 0;
      for (std::int64_t l = 0; l < depth; ++l) {
        sum += element(first, p.first, p.trans_first, row, l) *
               element(second, p.second, p.trans_second, l, column);
      }
      result[static_cast<std::size_t>(column * p.result.leading + row)] = sum;
    }
  }
  return result;
}

TEST(Gemm, IsAColumnMajorProductOfTheFactorsInTheOtherOrder) {
  constexpr std::int64_t m = 3;
  constexpr std::int64_t n = 5;
  constexpr std::int64_t k = 4;
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      for (const std::int64_t gap : {0, 2}) {
        const auto matrix = [gap](std::int64_t rows, std::int64_t columns, void* data) {
          TensorRef<2> ref(data, Dtype::f32, {rows, columns});
          ref.stride[0] += gap;
          return ref;
        };
        std::vector<float> a(64);
        std::vector<float> b(64);
        for (std::size_t i = 0; i < a.size(); ++i) {
          a[i] = static_cast<float>(i % 7) - 3.0F;
          b[i] = static_cast<float>(i % 5) - 2.0F;
        }
        GemmArgs args{.a = matrix(trans_a ? k : m, trans_a ? m : k, a.data()),
                      .b = matrix(trans_b ? n : k, trans_b ? k : n, b.data()),
                      .c = matrix(m, n, nullptr),
                      .trans_a = trans_a,
                      .trans_b = trans_b};
        const std::vector<float> c =
            column_major_product(impl::ColumnMajorProduct(args), b.data(), a.data());
        ASSERT_EQ(c.size(), static_cast<std::size_t>(m * (n + gap)));
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (std::int64_t l = 0; l < k; ++l) {
              const std::int64_t at_a = trans_a ? l * (m + gap) + i : i * (k + gap) + l;
              const std::int64_t at_b = trans_b ? j * (k + gap) + l : l * (n + gap) + j;
              sum += a[static_cast<std::size_t>(at_a)] * b[static_cast<std::size_t>(at_b)];
            }
            EXPECT_EQ(c[static_cast<std::size_t>(i * (n + gap) + j)], sum);
          }
        }
      }
    }
  }
}

// A factor of f32 that is packed once for all threads: in slices of its columns, in chunks of its depth.
TEST(Gemm, MatchesReferenceWhereAFactorIsPackedInParts) {
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{113, 6001, 5}, {115, 12000, 3}, {113, 3001, 750}}) {
    for (const bool trans_b : {false, true}) {
      expect_reference(alike(m, n, k, Dtype::f32,
                             {.trans_b = trans_b,
                              .bias = true,
                              .alpha = 0.5F,
                              .beta = trans_b ? 2.0F : 0.0F,
                              .gap = 3}));
    }
  }
}

TEST(Gemm, MatchesReferenceForEveryShapeTranspositionAndStride) {
  const std::vector<std::array<std::int64_t, 3>> shapes{{1, 1, 1},    {16, 32, 64}, {7, 5, 3},
                                                        {1, 67, 131}, {67, 1, 131}, {3, 70, 1},
                                                        {4, 130, 40}, {97, 61, 29}, {130, 70, 300}};
  for (const auto& [m, n, k] : shapes) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        for (const std::int64_t gap : {0, 5}) {
          for (const Dtype dtype : all_dtypes) {
            expect_reference(
                alike(m, n, k, dtype, {.trans_a = trans_a, .trans_b = trans_b, .gap = gap}));
          }
        }
      }
    }
  }
}

TEST(Gemm, EpilogueAddsOldValuesAndBiasInAnyMixOfDtypes) {
  for (const Dtype a : all_dtypes) {
    for (const Dtype b : all_dtypes) {
      for (const Dtype c : all_dtypes) {
        for (const bool trans_b : {false, true}) {
          expect_reference({.m = 37,
                            .n = 45,
                            .k = 70,
                            .a_dtype = a,
                            .b_dtype = b,
                            .c_dtype = c,
                            .trans_b = trans_b,
                            .bias = true,
                            .alpha = 0.5F,
                            .beta = -1.5F,
                            .gap = 1});
        }
      }
    }
  }
}

TEST(Gemm, BlocksJoin) {
  // Longer than any block in one extent at a time; ragged in all of them.
  const std::vector<std::array<std::int64_t, 3>> shapes{
      {1100, 33, 20}, {20, 1100, 33}, {18, 35, 4200}, {550, 600, 70}};
  for (const auto& [m, n, k] : shapes) {
    for (const bool trans_a : {false, true}) {
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        expect_reference(
            alike(m, n, k, dtype,
                  {.trans_a = trans_a, .trans_b = !trans_a, .bias = true, .beta = 1.0F, .gap = 2}));
      }
    }
  }
}

// On bf16 panels: a packed factor in several chunks; long sums in passes; tiles read from where they
// lie.
TEST(Gemm, TilesOfBf16JoinInEveryPlan) {
  const auto expect = [](std::int64_t m, std::int64_t n, std::int64_t k, bool trans_a, bool trans_b,
                         std::int64_t gap) {
    expect_reference({.m = m,
                      .n = n,
                      .k = k,
                      .a_dtype = Dtype::bf16,
                      .b_dtype = Dtype::bf16,
                      .trans_a = trans_a,
                      .trans_b = trans_b,
                      .alpha = 0.5F,
                      .beta = 1.0F,
                      .gap = gap});
  };
  expect(1100, 20, 4200, true, false, 0);
  expect(20, 600, 1100, false, true, 1);
  for (const std::int64_t tokens : {5, 16, 20, 32, 33}) expect(tokens, 80, 1056, false, true, 0);
  // Rows read in place up to a ragged strip, where there is one pass; an odd stride has them packed.
  for (const std::int64_t tokens : {75, 80, 105}) {
    for (const std::int64_t gap : {0, 2, 5}) {
      for (const std::int64_t k : {480, 1056}) {
        for (const bool trans_b : {false, true}) expect(tokens, 90, k, false, trans_b, gap);
      }
    }
  }
}

TEST(Gemm, TilesGiveTheSameBitsWhereverTheyAreRead) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes{{7, 1056}, {75, 480}, {96, 480}};
  for (const auto& [m, k] : shapes) {
    testing::product::Problem p{
        .m = m, .n = 48, .k = k, .a_dtype = Dtype::bf16, .b_dtype = Dtype::bf16, .trans_b = true};
    const Values values(p);
    const auto aligned = run(serial_host(), p, values);
    for (const std::int64_t gap : {2, 5}) {
      p.gap = gap;
      EXPECT_EQ(aligned, run(serial_host(), p, values)) << p.name();
    }
  }
}

// Inner products: every number of rows in registers, lines and blocks along k that end anywhere, rows
// of B that fill no group, B as a stream and rows of it side by side.
TEST(Gemm, FewRowsAreInnerProducts) {
  const std::vector<std::array<std::int64_t, 3>> shapes{
      {2, 25, 16}, {3, 13, 130},  {5, 31, 1100}, {6, 12, 33},   {7, 40, 1537}, {8, 11, 512},
      {9, 26, 65}, {17, 50, 777}, {64, 29, 600}, {1, 501, 601}, {1, 99, 3333}, {4, 29, 7001}};
  for (const auto& [m, n, k] : shapes) {
    for (const Dtype dtype : all_dtypes) {
      for (const std::int64_t gap : {0, 3}) {
        expect_reference(alike(m, n, k, dtype,
                               {.trans_b = true,
                                .bias = gap > 0,
                                .alpha = 0.5F,
                                .beta = gap > 0 ? 1.0F : 0.0F,
                                .gap = gap}));
      }
    }
  }
}

// Outer products: several chunks of columns and slices of k, ragged groups, pairs and rows in registers; rows of B
// that are 2 KiB apart (4 in f32), which the first rows of A keep for the others.
TEST(Gemm, FewRowsTimesAMatrixJoinChunksAndSlices) {
  struct Shape {
    std::int64_t m, n, k, gap;
  };
  const std::vector<Shape> shapes{{1, 1100, 700, 3},  {3, 70, 1301, 3}, {5, 2100, 65, 3},
                                  {17, 577, 333, 3},  {64, 45, 600, 0}, {13, 1024, 75, 0},
                                  {41, 1000, 333, 12}};
  for (const auto& [m, n, k, gap] : shapes) {
    for (const Dtype dtype : all_dtypes) {
      testing::product::Problem p = alike(
          m, n, k, dtype, {.bias = m > 3, .alpha = 0.5F, .beta = m > 3 ? 1.0F : 0.0F, .gap = gap});
      expect_reference(p);
      const Values values(p);
      EXPECT_EQ(run(serial_host(), p, values), run(Kokkos::OpenMP(2), p, values)) << p.name();
    }
  }
}

TEST(Gemm, LowRanksAreWrittenWhole) {
  for (const std::int64_t k : {1, 2, 7, 64}) {
    for (const Dtype dtype : all_dtypes) {
      for (const Dtype c : {dtype, Dtype::f32}) {
        expect_reference({.m = 75,
                          .n = 141,
                          .k = k,
                          .a_dtype = dtype,
                          .b_dtype = dtype,
                          .c_dtype = c,
                          .trans_a = true,
                          .alpha = 0.5F,
                          .beta = k == 2 ? 0.0F : 1.0F,
                          .gap = k == 7 ? 3 : 0});
      }
    }
  }
}

// Generation relies on this: a sequence continues among others as it does alone.
TEST(Gemm, ARowHasTheSameBitsAloneAndAmongOthers) {
  for (const Dtype dtype : all_dtypes) {
    // So large that a single row takes B for a stream.
    testing::product::Problem p{.m = 64,
                                .n = 337,
                                .k = 1100,
                                .a_dtype = dtype,
                                .b_dtype = dtype,
                                .c_dtype = Dtype::f32,
                                .trans_b = true};
    const Values values(p);
    const auto engines = gemm_engines<Host>();
    const GemmEngine<Host>* skinny = &*std::ranges::find_if(
        engines, [](const auto& engine) { return engine.name == std::string("skinny"); });
    const auto all = run(serial_host(), p, values, skinny);
    const auto fastest = run(serial_host(), p, values);
    for (const std::int64_t m : {1, 2, 4, 5, 11, 33}) {
      p.m = m;
      Values few(values);
      few.a.resize(static_cast<std::size_t>(m * p.k));
      const auto first = [&](const std::vector<float>& rows) {
        return std::vector<float>(rows.begin(), rows.begin() + m * p.n);
      };
      EXPECT_EQ(run(serial_host(), p, few, skinny), first(all)) << p.name();
      EXPECT_EQ(run(Kokkos::OpenMP(2), p, few, skinny), first(all)) << p.name();
      if (tile::bf16_panels::unit() == tile::bf16_panels::UnitName::amx) continue;
      EXPECT_EQ(run(serial_host(), p, few), first(fastest)) << p.name();
    }
  }
}

TEST(Gemm, TheUnitIsTold) {
  const auto unit = [](Dtype a, Dtype b, std::int64_t m) -> std::string {
    GemmArgs args;
    args.a = {nullptr, a, {m, 8}};
    args.b = {nullptr, b, {3, 8}};
    args.c = {nullptr, Dtype::f32, {m, 3}};
    args.trans_b = true;
    return fastest_engine<Host>(args).unit;
  };
  const bool on_tiles = tile::bf16_panels::unit() != tile::bf16_panels::UnitName::none;
  const std::string tiles =
      on_tiles ? tile::bf16_panels::name_of(tile::bf16_panels::unit()) : tile::vector_name;
  EXPECT_EQ(unit(Dtype::bf16, Dtype::bf16, 64), tiles);
  const bool has_dots =
      on_tiles && tile::bf16_panels::refusal(tile::bf16_panels::UnitName::dot).empty();
  EXPECT_EQ(unit(Dtype::bf16, Dtype::bf16, 1), has_dots ? "avx512_bf16" : tile::vector_name)
      << "inner products";
  EXPECT_EQ(unit(Dtype::bf16, Dtype::f32, 64), tile::vector_name);
  EXPECT_EQ(unit(Dtype::f16, Dtype::f16, 64), tile::vector_name);
}

// No tokens, or no features.
TEST(Gemm, NoRowsOrColumnsAreNothingToDo) {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{0, 40}, {40, 0}, {0, 0}}) {
    for (const Dtype dtype : all_dtypes) {
      for (const bool trans_a : {false, true}) {
        for (const bool trans_b : {false, true}) {
          expect_reference(alike(m, n, 33, dtype, {.trans_a = trans_a, .trans_b = trans_b}));
        }
      }
    }
  }
}

TEST(Gemm, AnEmptySumIsZero) {
  for (const Dtype dtype : all_dtypes) {
    expect_reference({.m = 5, .n = 9, .k = 0, .c_dtype = dtype});
    expect_reference({.m = 5, .n = 9, .k = 0, .c_dtype = dtype, .bias = true, .beta = 2.0F});
    expect_reference({.m = 0, .n = 9, .k = 3, .c_dtype = dtype});
  }
}

TEST(Gemm, EqualBitsForAnyNumberOfThreads) {
  for (const std::int64_t k : {40, 333, 1000}) {
    for (const Dtype dtype : all_dtypes) {
      const testing::product::Problem p = alike(331, 517, k, dtype, {.trans_a = true});
      const Values values(p);
      const auto one = run(Kokkos::OpenMP(1), p, values);
      EXPECT_EQ(one, run(Kokkos::OpenMP(2), p, values)) << p.name();
      EXPECT_EQ(one, run(serial_host(), p, values)) << p.name();
    }
  }
}

TEST(Gemm, ArgumentsThatDoNotFitAreRefused) {
  GemmArgs args;
  args.a = {nullptr, Dtype::f32, {4, 8}};
  args.b = {nullptr, Dtype::f32, {7, 3}};
  args.c = {nullptr, Dtype::f32, {4, 3}};
  EXPECT_THROW((void)gemm_workspace_bytes(serial_host(), args), InputError);
  args.b = {nullptr, Dtype::bf16, {8, 3}};
  EXPECT_THROW(gemm(serial_host(), args, Workspace{}), InputError);
}

}  // namespace
}  // namespace katt::linear
