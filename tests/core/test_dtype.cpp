#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/dtype.hpp"

namespace katt {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// A 16-bit format by its parameters, with plain arithmetic in place of bit tricks.
struct Format {
  int mantissa_bits;
  int bias;

  [[nodiscard]] std::uint32_t infinity_bits() const {
    return ((1U << (15 - mantissa_bits)) - 1U) << mantissa_bits;
  }

  /// Value of the bits of a finite number; those of infinity give the power of two that would
  /// follow the largest number, which is where rounding to infinity is measured from.
  [[nodiscard]] double value(std::uint32_t bits) const {
    const auto exponent = static_cast<int>((bits & 0x7FFFU) >> mantissa_bits);
    const auto mantissa = static_cast<double>(bits & ((1U << mantissa_bits) - 1U));
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                           : std::ldexp(std::ldexp(1.0, mantissa_bits) + mantissa,
                                                        exponent - bias - mantissa_bits);
    return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
  }

  /// Nearest number by search, of two equally near ones the even.
  [[nodiscard]] std::uint16_t nearest(float value) const {
    const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
    const double magnitude = std::abs(static_cast<double>(value));
    std::uint32_t below = 0;
    std::uint32_t above = infinity_bits();
    if (magnitude >= this->value(above)) return static_cast<std::uint16_t>(sign | above);
    while (above - below > 1) {
      const std::uint32_t middle = (below + above) / 2;
      (this->value(middle) <= magnitude ? below : above) = middle;
    }
    const double down = magnitude - this->value(below);
    const double up = this->value(above) - magnitude;
    const std::uint32_t bits = down < up || (down == up && below % 2 == 0) ? below : above;
    return static_cast<std::uint16_t>(sign | bits);
  }
};

constexpr Format f16_format{10, 15};
constexpr Format bf16_format{7, 127};

/// Every number of the format, every midpoint of neighbours, and the floats on both sides of each.
std::vector<float> critical_values(const Format& format) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < format.infinity_bits(); ++bits) {
    const double low = format.value(bits);
    const double high = format.value(bits + 1);
    for (const double exact : {low, (low + high) / 2}) {
      const auto value = static_cast<float>(exact);
      for (const float near :
           {std::nextafter(value, -infinity), value, std::nextafter(value, infinity)}) {
        values.push_back(near);
        values.push_back(-near);
      }
    }
  }
  return values;
}

std::vector<float> random_values(std::size_t count) {
  std::mt19937 random(7);
  std::vector<float> values;
  while (values.size() < count) {
    const float value = from_bits(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) values.push_back(value);
  }
  return values;
}

/// Compares a conversion with the search; counts instead of asserting, as there are many values.
template <class Convert>
void expect_nearest(const Format& format, const std::vector<float>& values, Convert convert) {
  std::size_t wrong = 0;
  float first = 0;
  for (const float value : values) {
    if (convert(value) != format.nearest(value) && wrong++ == 0) first = value;
  }
  EXPECT_EQ(wrong, 0U) << "first at " << std::hexfloat << first << " in " << values.size();
}

TEST(Dtype, F16RoundsToNearestEvenAtEveryMidpoint) {
  for (const auto& values : {critical_values(f16_format), random_values(300000)}) {
    expect_nearest(f16_format, values, impl::f16_bits_from_float);
    expect_nearest(f16_format, values, [](float value) { return f16(value).bits; });
  }
}

TEST(Dtype, Bf16RoundsToNearestEvenAtEveryMidpoint) {
  for (const auto& values : {critical_values(bf16_format), random_values(300000)}) {
    expect_nearest(bf16_format, values, impl::bf16_bits_from_float);
    expect_nearest(bf16_format, values, [](float value) { return bf16(value).bits; });
  }
}

TEST(Dtype, EveryPatternWidensToItsValueAndBack) {
  for (std::uint32_t pattern = 0; pattern <= 0xFFFFU; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const std::uint32_t magnitude = pattern & 0x7FFFU;
    const float sign = (pattern & 0x8000U) != 0 ? -1.0F : 1.0F;

    f16 half;
    half.bits = bits;
    const float soft = impl::float_from_f16_bits(bits);
    const auto wide = static_cast<float>(half);
    bool good = std::bit_cast<std::uint32_t>(soft) == std::bit_cast<std::uint32_t>(wide);
    if (magnitude > f16_format.infinity_bits()) {
      good = good && std::isnan(wide) && f16(wide).bits == (bits | 0x0200U);
    } else {
      good = good && (magnitude == f16_format.infinity_bits() ? wide == sign * infinity
                                                              : wide == f16_format.value(bits));
      good = good && f16(wide).bits == bits && impl::f16_bits_from_float(wide) == bits;
    }
    if (!good) ADD_FAILURE() << "f16 pattern " << std::hex << pattern;

    bf16 brain;
    brain.bits = bits;
    const auto brain_wide = static_cast<float>(brain);
    if (magnitude > bf16_format.infinity_bits()) {
      good = std::isnan(brain_wide) && bf16(brain_wide).bits == (bits | 0x0040U);
    } else {
      good = (magnitude == bf16_format.infinity_bits() ? brain_wide == sign * infinity
                                                       : brain_wide == bf16_format.value(bits)) &&
             bf16(brain_wide).bits == bits;
    }
    if (!good) ADD_FAILURE() << "bf16 pattern " << std::hex << pattern;
  }
}

TEST(Dtype, NanStaysNan) {
  // among them payloads that lie only in the bits that are cut off
  for (const std::uint32_t bits : {0x7F800001U, 0x7F801FFFU, 0x7F80FFFFU, 0x7FC00000U, 0x7FFFFFFFU,
                                   0xFF800001U, 0xFFFFFFFFU}) {
    const float nan = from_bits(bits);
    EXPECT_TRUE(std::isnan(static_cast<float>(f16(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(static_cast<float>(bf16(nan)))) << std::hex << bits;
    EXPECT_EQ(f16(nan).bits, impl::f16_bits_from_float(nan)) << std::hex << bits;
    EXPECT_EQ(f16(nan).bits >> 15, bits >> 31);
    EXPECT_EQ(bf16(nan).bits >> 15, bits >> 31);
  }
}

TEST(Dtype, LimitsOfTheFormats) {
  EXPECT_EQ(static_cast<float>(f16(65504.0F)), 65504.0F);
  EXPECT_EQ(static_cast<float>(f16(65519.996F)), 65504.0F);
  EXPECT_EQ(static_cast<float>(f16(65520.0F)), infinity);
  EXPECT_EQ(static_cast<float>(f16(-1e30F)), -infinity);
  EXPECT_EQ(static_cast<float>(f16(0x1p-24F)), 0x1p-24F);
  EXPECT_EQ(f16(0x1p-25F).bits, 0U);
  EXPECT_EQ(f16(-0x1p-25F).bits, 0x8000U);
  EXPECT_EQ(static_cast<float>(f16(0x1.000002p-25F)), 0x1p-24F);
  EXPECT_EQ(static_cast<float>(bf16(std::numeric_limits<float>::max())), infinity);
  EXPECT_EQ(static_cast<float>(bf16(0x1.FEp127F)), 0x1.FEp127F);
  EXPECT_EQ(static_cast<float>(bf16(0x1p-133F)), 0x1p-133F);
}

TEST(Dtype, NamesAndSizes) {
  for (const Dtype dtype : all_dtypes) {
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
    const auto size = visit_dtype(dtype, []<class T>() { return sizeof(T); });
    EXPECT_EQ(size, size_of(dtype));
    EXPECT_TRUE(visit_dtype(dtype, [dtype]<class T>() { return dtype_of<const T> == dtype; }));
    const auto step = static_cast<float>(epsilon_of(dtype));
    EXPECT_EQ(round_to(dtype, 1.0F + step), 1.0F + step);
    EXPECT_EQ(round_to(dtype, 1.0F + step / 2), 1.0F);  // a tie, to even
    EXPECT_EQ(round_to(dtype, 1.0F + step * 1.5F), 1.0F + 2 * step);
  }
  EXPECT_FALSE(dtype_from_name("f64").has_value());
  EXPECT_FALSE(dtype_from_name("").has_value());
}

}  // namespace
}  // namespace katt
