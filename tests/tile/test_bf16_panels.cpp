#include <gtest/gtest.h>

#include <cmath>
#include <type_traits>
#include <vector>

#include "op/reference/fill.hpp"
#include "tile/bf16/bf16_engine.hpp"

namespace katt::tile::bf16_panels {
namespace {

#if defined(KATT_BF16_PANELS)

struct alignas(64) Panels {
  std::vector<float> f32 = std::vector<float>(16 * panel_floats + 16);
  std::vector<bf16> half = std::vector<bf16>(16 * panel_elements + 32);
  /// Aligned to a cache line.
  float* floats() { return align(f32.data()); }
  bf16* halves() { return align(half.data()); }

 private:
  template <class T>
  static T* align(T* p) {
    return reinterpret_cast<T*>((reinterpret_cast<std::uintptr_t>(p) + 63) / 64 * 64);
  }
};

/// rows × columns of bf16 between −1 and 1, rows `columns` apart.
std::vector<bf16> matrix(int rows, int columns, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  testing::fill(values, seed, Dtype::bf16);
  std::vector<bf16> narrow(values.begin(), values.end());
  return narrow;
}

/// Every unit that this CPU has is tested, whichever of them a process uses.
template <class U>
class Bf16Panels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::is_same_v<U, AmxUnit> && !amx::refusal().empty()) {
      GTEST_SKIP() << "skipped: " << amx::refusal();
    }
    if (std::is_same_v<U, DotUnit> && !cpu_features().avx512_bf16) {
      GTEST_SKIP() << "skipped: this CPU has no AVX512-BF16";
    }
  }
};
using Units = ::testing::Types<AmxUnit, DotUnit>;
TYPED_TEST_SUITE(Bf16Panels, Units);

/// C = A·B for 32 × 32 results over two steps of depth: A from rows, B from rows of Bᵀ.
TYPED_TEST(Bf16Panels, ProductOfPackedRowsEqualsThePlainOne) {
  for (const int size : {32, 31, 17, 1}) {           // rows of either operand
    for (const int depth_elements : {64, 56, 40}) {  // two panels deep, the second one ragged
      const auto a = matrix(size, depth_elements, 1);
      const auto b = matrix(size, depth_elements, 2);
      Panels left;
      Panels right;
      Panels sums;
      for (int d = 0; d < 2; ++d) {
        for (int t = 0; t < 2; ++t) {
          const int begin = d * depth;
          pack_rows(a.data() + t * rows * depth_elements + begin, depth_elements, size - t * rows,
                    depth_elements - begin, left.halves() + (d * 2 + t) * panel_elements);
          pack_transposed(
              [&](int r) {
                const int row = t * rows + r;
                return row < size ? b.data() + row * depth_elements + begin : nullptr;
              },
              depth_elements - begin, right.halves() + (d * 2 + t) * panel_elements);
        }
      }
      {
        [[maybe_unused]] const typename TypeParam::Session session;
        const auto at = [](const bf16* panels) {
          return [panels](int i) { return panels + i * 2 * panel_elements; };
        };
        TypeParam::template product_2x2<0>(at(left.halves()), at(right.halves()), 2, false,
                                           sums.floats(), nothing);
        TypeParam::template product_2x2<2>(at(left.halves()), at(right.halves()), 2, true,
                                           sums.floats(), nothing);
      }
      for (int i = 0; i < 32; ++i) {
        for (int j = 0; j < 32; ++j) {
          double expected = 0;
          for (int d = 0; d < depth_elements && i < size && j < size; ++d) {
            expected += 2.0 * static_cast<float>(a[i * depth_elements + d]) *
                        static_cast<float>(b[j * depth_elements + d]);
          }
          // [panel of B][panel of A], rows of A.
          const float got =
              sums.floats()[(j / 16 * 2 + i / 16) * panel_floats + i % 16 * 16 + j % 16];
          ASSERT_NEAR(got, expected, 1e-5 * depth_elements) << i << ", " << j << " of " << size;
        }
      }
    }
  }
}

/// C(dims × dims) = Xᵀ·Y over 32 rows: A from columns, B in pairs of rows.
TYPED_TEST(Bf16Panels, ProductOfPackedColumnsEqualsThePlainOne) {
  for (const int count : {32, 31, 2, 1}) {
    for (const int width : {32, 24, 8}) {
      const auto x = matrix(count, width, 3);
      const auto y = matrix(count, width, 4);
      Panels left;
      Panels right;
      Panels sums;
      pack_columns(x.data(), width, count, width, 2, left.halves());
      pack_pairs([&](int r) { return r < count ? y.data() + r * width : nullptr; }, width, 2,
                 right.halves());
      {
        [[maybe_unused]] const typename TypeParam::Session session;
        TypeParam::template product_2x2<1>([&](int) { return left.halves(); },
                                           [&](int) { return right.halves(); }, 1, false,
                                           sums.floats(), nothing);
      }
      for (int i = 0; i < 32; ++i) {
        for (int j = 0; j < 32; ++j) {
          double expected = 0;
          for (int r = 0; r < count && i < width && j < width; ++r) {
            expected += static_cast<double>(static_cast<float>(x[r * width + i])) *
                        static_cast<float>(y[r * width + j]);
          }
          const float got =
              sums.floats()[(j / 16 * 2 + i / 16) * panel_floats + i % 16 * 16 + j % 16];
          ASSERT_NEAR(got, expected, 1e-4) << i << ", " << j << " of " << count << " x " << width;
        }
      }
    }
  }
}

TEST(Bf16Exponentials, PowersOfTwoAreFarBelowTheRoundingOfBf16) {
  for (double x = -120; x <= 120; x += 0.01171875) {
    alignas(64) float result[16];
    _mm512_store_ps(result, exp2_of_16_bits(_mm512_set1_ps(static_cast<float>(x))));
    ASSERT_NEAR(result[0] / std::exp2(static_cast<double>(static_cast<float>(x))), 1.0, 3e-6) << x;
  }
  alignas(64) float result[16];
  const float infinity = INFINITY;
  _mm512_store_ps(result, exp2_of_16_bits(_mm512_set1_ps(-infinity)));
  EXPECT_EQ(result[0], 0.0F);
  _mm512_store_ps(result, exp2_of_16_bits(_mm512_set1_ps(-1e30F)));
  EXPECT_EQ(result[0], 0.0F);
  _mm512_store_ps(result, exp2_of_16_bits(_mm512_set1_ps(NAN)));
  EXPECT_TRUE(std::isnan(result[0]));
}

#else

TEST(Bf16Panels, AreRefusedWithAReason) {
  EXPECT_EQ(unit(), UnitName::none);
  GTEST_SKIP() << "skipped: " << amx::refusal();
}

#endif

}  // namespace
}  // namespace katt::tile::bf16_panels
