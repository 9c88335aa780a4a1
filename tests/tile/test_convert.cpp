#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "tile/convert.hpp"

namespace katt {
namespace {

/// True when convert() equals the scalar conversion bit for bit, on an unaligned part of the data.
template <class Out, class In>
bool equals_scalar(const std::vector<In>& in, std::size_t first, std::size_t count) {
  std::vector<Out> bulk(count + 2, Out(-7.0F));
  convert(std::span<const In>(in).subspan(first, count), std::span<Out>(bulk).subspan(1, count));
  bool equal =
      static_cast<float>(bulk.front()) == -7.0F && static_cast<float>(bulk.back()) == -7.0F;
  for (std::size_t i = 0; i < count; ++i) {
    const Out scalar = Out(static_cast<float>(in[first + i]));
    equal = equal && std::memcmp(&bulk[i + 1], &scalar, sizeof(Out)) == 0;
  }
  return equal;
}

std::vector<float> special_floats() {
  std::vector<float> values;
  for (const std::uint32_t exponent :
       {0U, 1U, 102U, 103U, 112U, 113U, 127U, 142U, 143U, 254U, 255U}) {
    for (const std::uint32_t mantissa :
         {0U, 1U, 0x0FFFU, 0x1000U, 0x1001U, 0x2FFFU, 0x3000U, 0x7FFFU, 0x8000U, 0x8001U, 0x18000U,
          0x7FFFFFU, 0x400000U}) {
      for (const std::uint32_t sign : {0U, 1U}) {
        values.push_back(std::bit_cast<float>(sign << 31 | exponent << 23 | mantissa));
      }
    }
  }
  return values;
}

template <class T>
class ConvertTo : public ::testing::Test {};
using HalfTypes = ::testing::Types<f16, bf16>;
TYPED_TEST_SUITE(ConvertTo, HalfTypes);

TYPED_TEST(ConvertTo, EveryPatternWidens) {
  std::vector<TypeParam> patterns(1 << 16);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    patterns[i].bits = static_cast<std::uint16_t>(i);
  }
  EXPECT_TRUE((equals_scalar<float>(patterns, 0, patterns.size())));
}

TYPED_TEST(ConvertTo, FloatsRound) {
  std::vector<float> values = special_floats();
  std::mt19937 random(11);
  while (values.size() < 1000003) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  EXPECT_TRUE((equals_scalar<TypeParam>(values, 0, values.size())));
  // dense around the numbers of the format, where ties are
  for (float& value : values) {
    const auto near = static_cast<float>(TypeParam(value));
    const auto step = static_cast<std::uint32_t>(random() % 5) * 0x800U;
    value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(near) + step);
  }
  EXPECT_TRUE((equals_scalar<TypeParam>(values, 0, values.size())));
}

TYPED_TEST(ConvertTo, EveryShortLengthAndOffset) {
  const std::vector<float> values = special_floats();
  std::vector<TypeParam> halves(values.begin(), values.end());
  std::size_t wrong = 0;
  for (std::size_t count = 0; count <= 67; ++count) {
    for (std::size_t first = 0; first < 20; ++first) {
      wrong += equals_scalar<TypeParam>(values, first, count) ? 0 : 1;
      wrong += equals_scalar<float>(halves, first, count) ? 0 : 1;
    }
  }
  EXPECT_EQ(wrong, 0U);
}

TYPED_TEST(ConvertTo, LengthsThatDifferAreRefused) {
  std::vector<float> floats(5);
  std::vector<TypeParam> halves(4);
  EXPECT_THROW(convert(std::span<const float>(floats), std::span(halves)), std::invalid_argument);
  EXPECT_THROW(convert(std::span<const TypeParam>(halves), std::span(floats)),
               std::invalid_argument);
}

TEST(Convert, FloatToFloatCopies) {
  const std::vector<float> values = special_floats();
  std::vector<float> out(values.size());
  convert(std::span<const float>(values), std::span(out));
  EXPECT_EQ(std::memcmp(values.data(), out.data(), values.size() * sizeof(float)), 0);
}

RC_GTEST_PROP(Convert, AnyFloatsEqualTheScalarConversion,
              (const std::vector<std::uint32_t>& bits)) {
  std::vector<float> values;
  for (const std::uint32_t pattern : bits) values.push_back(std::bit_cast<float>(pattern));
  RC_ASSERT((equals_scalar<f16>(values, 0, values.size())));
  RC_ASSERT((equals_scalar<bf16>(values, 0, values.size())));
}

/// Narrowing and widening what is narrow already changes nothing.
RC_GTEST_PROP(Convert, RoundingIsIdempotent, (const std::vector<std::uint32_t>& bits)) {
  std::vector<float> values;
  for (const std::uint32_t pattern : bits) values.push_back(std::bit_cast<float>(pattern));
  std::vector<bf16> once(values.size());
  std::vector<bf16> twice(values.size());
  convert(std::span<const float>(values), std::span(once));
  convert(std::span<const bf16>(once), std::span(values));
  convert(std::span<const float>(values), std::span(twice));
  for (std::size_t i = 0; i < once.size(); ++i) RC_ASSERT(once[i].bits == twice[i].bits);
}

}  // namespace
}  // namespace katt
