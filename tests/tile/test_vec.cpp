#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tile/bf16/transpose.hpp"
#include "tile/rows/pairs.hpp"
#include "tile/rows/stream.hpp"
#include "tile/vec/vec.hpp"

namespace katt::tile {
namespace {

using Exec = Kokkos::DefaultHostExecutionSpace;
using Vec = VecOf<Exec>;
constexpr int lanes = lanes_v<Exec>;

std::uint16_t bits(bf16 value) { return std::bit_cast<std::uint16_t>(value); }
std::uint16_t bits(f16 value) { return std::bit_cast<std::uint16_t>(value); }

/// Every upper half of an f32 with lower halves around the ties of bf16 and f16: all signs and
/// exponents, subnormal numbers, infinities and NaN; and random bits.
std::vector<float> hard_values() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x2FFFU, 0x3000U,
                                    0x3001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 1 << 18; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  values.resize(values.size() / (2 * lanes) * (2 * lanes));
  return values;
}

template <class T>
void expect_rounded(const std::vector<float>& values, const T* made, const char* how) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(bits(made[i]), bits(T(values[i]))) << how << ' ' << values[i];
  }
}

template <class T>
void check_stores() {
  const std::vector<float> values = hard_values();
  const auto count = static_cast<std::int64_t>(values.size());
  const Kokkos::View<T*, Kokkos::HostSpace> target("target", values.size());
  T* to = target.data();
  ASSERT_TRUE(is_streamable(to));
  const auto each = [&](const auto& write, const char* how) {
    Kokkos::deep_copy(target, T(7.0F));
    write();
    stream_fence();
    expect_rounded(values, to, how);
  };
  const auto one_by_one = [&](const auto& write) {
    for (std::int64_t i = 0; i < count; i += lanes) write(to + i, load<Vec>(&values[i]));
  };
  const auto two_by_two = [&](const auto& write) {
    for (std::int64_t i = 0; i < count; i += 2 * lanes) {
      write(to + i, load<Vec>(&values[i]), load<Vec>(&values[i + lanes]));
    }
  };
  const auto pairs = [&](const auto& write) {
    for (std::int64_t i = 0; i < count; i += 2 * lanes) {
      Vec even;
      Vec odd;
      load_pairs(&values[i], even, odd);
      write(to + i, even, odd);
    }
  };
  each([&] { one_by_one([](T* t, const Vec& v) { store(t, v); }); }, "store");
  each([&] { two_by_two([](T* t, const Vec& a, const Vec& b) { store_two_to<false>(t, a, b); }); },
       "store_two_to");
  each([&] { pairs([](T* t, const Vec& a, const Vec& b) { store_pairs<false>(t, a, b); }); },
       "store_pairs");
  each([&] { one_by_one([](T* t, const Vec& v) { store(t, rounded<T>(v)); }); }, "rounded");
  if constexpr (can_stream_v<Exec>) {
    each([&] { one_by_one([](T* t, const Vec& v) { store_to<true>(t, v); }); }, "store_to");
    each([&] { two_by_two([](T* t, const Vec& a, const Vec& b) { store_two_to<true>(t, a, b); }); },
         "store_two_to, streamed");
    each([&] { pairs([](T* t, const Vec& a, const Vec& b) { store_pairs<true>(t, a, b); }); },
         "store_pairs, streamed");
  }
}

TEST(Vectors, StoresRoundToNearestEvenInBf16) { check_stores<bf16>(); }
TEST(Vectors, StoresRoundToNearestEvenInF16) { check_stores<f16>(); }

/// Every number of a dtype, widened as elements are, and what a vector becomes in registers.
template <class T>
void check_loads() {
  std::vector<T> all(0x10000);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  const auto expect = [&](std::size_t i, float made, const char* how) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(made),
              std::bit_cast<std::uint32_t>(static_cast<float>(all[i])))
        << how << ' ' << i;
  };
  for (std::size_t i = 0; i < all.size(); i += 2 * lanes) {
    float wide[2 * lanes];
    Vec even;
    Vec odd;
    load_pairs(&all[i], even, odd);
    store_pairs<false>(wide, even, odd);
    for (int k = 0; k < 2 * lanes; ++k) expect(i + k, wide[k], "load_pairs");
    load_pairs(wide, even, odd);
    store(wide, even);
    store(wide + lanes, odd);
    for (int k = 0; k < 2 * lanes; ++k) expect(i + k % lanes * 2 + k / lanes, wide[k], "pairs");
    store(wide, load<Vec>(&all[i]));
    for (int k = 0; k < lanes; ++k) expect(i + k, wide[k], "load");
  }
  const std::vector<float> values = hard_values();
  for (std::size_t i = 0; i < values.size(); i += lanes) {
    float wide[lanes];
    store(wide, rounded<T>(load<Vec>(&values[i])));
    for (int k = 0; k < lanes; ++k) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[k]),
                std::bit_cast<std::uint32_t>(static_cast<float>(T(values[i + k]))))
          << values[i + k];
    }
  }
}

TEST(Vectors, LoadsWidenAsElementsDoInBf16) { check_loads<bf16>(); }
TEST(Vectors, LoadsWidenAsElementsDoInF16) { check_loads<f16>(); }

TEST(Vectors, SumsOverLanesAndTransposes) {
  constexpr int count = 16;
  Vec rows[count];
  float square[count][lanes];
  for (int i = 0; i < count; ++i) {
    for (int k = 0; k < lanes; ++k) square[i][k] = static_cast<float>(1 << (i + k) % 20);
    rows[i] = load<Vec>(square[i]);
    float total = 0;
    float largest = 0;
    for (const float value : square[i]) {
      total += value;
      largest = std::max(largest, value);
    }
    EXPECT_EQ(reduce_sum(rows[i]), total) << i;
    EXPECT_EQ(reduce_max(rows[i]), largest) << i;
  }
  float sums[count];
  lane_sums(rows, sums);
  for (int i = 0; i < count; ++i) EXPECT_EQ(sums[i], reduce_sum(load<Vec>(square[i]))) << i;
  Vec turned[lanes];
  for (int i = 0; i < lanes; ++i) turned[i] = load<Vec>(square[i]);
  transpose(turned);
  for (int i = 0; i < lanes; ++i) {
    float column[lanes];
    store(column, turned[i]);
    for (int k = 0; k < lanes; ++k) EXPECT_EQ(column[k], square[k][i]) << i << ' ' << k;
  }
}

template <class T>
void check_stream_copy() {
  const Kokkos::View<T*, Kokkos::HostSpace> source("source", 10 * lanes);
  const Kokkos::View<T*, Kokkos::HostSpace> target("target", 10 * lanes);
  for (int i = 0; i < 10 * lanes; ++i) source(i) = T(static_cast<float>(i % 256));
  Kokkos::deep_copy(target, T(-1.0F));
  ASSERT_TRUE(is_streamable(target.data()));
  for (int i = 2 * lanes; i < 8 * lanes; i += 2 * lanes) {
    stream_copy_two<Vec>(source.data() + i, target.data() + i);
  }
  stream_fence();
  for (int i = 0; i < 10 * lanes; ++i) {
    const bool copied = i >= 2 * lanes && i < 8 * lanes;
    ASSERT_EQ(static_cast<float>(target(i)), copied ? static_cast<float>(i % 256) : -1.0F) << i;
  }
}

TEST(Vectors, StreamCopyWritesTwoVectorsAndNothingElse) {
  if constexpr (can_stream_v<Exec>) {
    check_stream_copy<float>();
    check_stream_copy<f16>();
    check_stream_copy<bf16>();
  } else {
    GTEST_SKIP() << "skipped: no streaming stores";
  }
}

TEST(Vectors, PowersOfTwo) {
  const auto check = [](const auto& power, double limit) {
    for (double x = -125; x <= 126.5; x += 0.01171875) {
      float result[lanes];
      store(result, Vec(power(Vec(static_cast<float>(x)))));
      ASSERT_NEAR(result[0] / std::exp2(static_cast<double>(static_cast<float>(x))), 1.0, limit)
          << x;
    }
    const auto of = [&](float x) {
      float result[lanes];
      store(result, Vec(power(Vec(x))));
      return result[lanes - 1];
    };
    constexpr float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(of(-infinity), 0.0F);
    EXPECT_EQ(of(-1e30F), 0.0F);
    for (float x = -300; x < -126; x += 0.37F) {
      ASSERT_GE(of(x), 0.0F) << x;
      ASSERT_LE(of(x), 0x1p-126F) << x;
    }
    EXPECT_EQ(of(128.0F), infinity);
    EXPECT_TRUE(std::isnan(of(std::numeric_limits<float>::quiet_NaN())));
  };
  check([](const Vec& x) { return exp2(x); }, 0x1p-23);
  check([](const Vec& x) { return exp2_of_16_bits(x); }, 3e-6);
}

TEST(Vectors, Sigmoid) {
  const auto check = [](const auto& sigmoid, double limit) {
    const auto of = [&](float x) {
      float result[lanes];
      store(result, Vec(sigmoid(Vec(x))));
      return result[lanes - 1];
    };
    for (double x = -85; x < 40; x += 0.01171875) {
      ASSERT_NEAR(of(static_cast<float>(x)) * (1.0 + std::exp(-x)), 1.0, limit) << x;
    }
    constexpr float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(of(infinity), 1.0F);
    EXPECT_NEAR(of(-1e10F), 0.0F, 0x1p-126F);
    EXPECT_NEAR(of(-infinity), 0.0F, 0x1p-126F);
    EXPECT_TRUE(std::isnan(of(std::numeric_limits<float>::quiet_NaN())));
  };
  // e^−x multiplies the rounding of x · log2 e by x.
  check([](const Vec& x) { return sigmoid<float>(x); }, 1e-5);
  check([](const Vec& x) { return sigmoid<bf16>(x); }, 1e-4);
}

TEST(Vectors, HyperbolicTangent) {
  const auto of = [](float x) {
    float result[lanes];
    store(result, Vec(tanh(Vec(x))));
    return result[lanes - 1];
  };
  for (float x = 0x1p-60F; x < 20.0F; x *= 1.0001F) {
    ASSERT_NEAR(of(x) / std::tanh(static_cast<double>(x)), 1.0, 0x1p-21) << x;
    ASSERT_LE(of(x), 1.0F) << x;
    ASSERT_EQ(of(-x), -of(x)) << x;
  }
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {20.0F, 1e10F, std::numeric_limits<float>::max(), infinity}) {
    EXPECT_NEAR(of(x), 1.0F, 0x1p-21F) << x;
    EXPECT_LE(of(x), 1.0F) << x;
    EXPECT_NEAR(of(-x), -1.0F, 0x1p-21F) << x;
  }
  EXPECT_EQ(of(0.0F), 0.0F);
  EXPECT_TRUE(std::isnan(of(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace katt::tile
