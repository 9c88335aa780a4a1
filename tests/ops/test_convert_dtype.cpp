#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/convert_dtype/convert_dtype.hpp"
#include "ops/convert_dtype/convert_dtype_ref.hpp"
#include "tests/ops/matrix.hpp"

namespace katt::convert_dtype {
namespace {

using testing::Matrix;

/// Rows of values from one dtype to another, by a variant. The values are exact in `from`.
template <class Exec>
std::vector<float> run(const Exec& exec, const std::vector<float>& values, std::int64_t rows,
                       Dtype from, Dtype to, const std::string& variant, std::int64_t gap = 0) {
  constexpr Backend backend = backend_of<Exec>();
  const std::int64_t columns = static_cast<std::int64_t>(values.size()) / rows;
  const Matrix x(backend, from, rows, columns, gap, values);
  const Matrix out(backend, to, rows, columns, 2 * gap);
  const Status status = forward(exec, {x.ref(), out.ref()}, {variant, {}});
  EXPECT_TRUE(status.is_ok()) << status.reason();
  exec.fence();
  EXPECT_TRUE(out.gaps_untouched());
  return out.values();
}

/// Every output is the reference of its input; a NaN stays one.
void expect_reference(const std::vector<float>& values, const std::vector<float>& got, Dtype to,
                      const std::string& what) {
  ASSERT_EQ(values.size(), got.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << what << " at " << i;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got[i]), reference_round(to, values[i]))
        << what << ": " << values[i] << " at " << i;
    ASSERT_EQ(std::signbit(got[i]), std::signbit(values[i])) << what << ": " << values[i];
  }
}

/// All numbers of a 16-bit dtype.
std::vector<float> all_of(Dtype dtype) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    if (dtype == Dtype::f16) {
      f16 value;
      value.bits = static_cast<std::uint16_t>(bits);
      values.push_back(static_cast<float>(value));
    } else {
      values.push_back(std::bit_cast<float>(bits << 16));
    }
  }
  return values;
}

/// Ties, neighbours of ties, limits, subnormal numbers, infinities and NaN.
std::vector<float> hard_floats() {
  std::vector<float> values;
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    for (const float value : all_of(dtype)) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t half = dtype == Dtype::f16 ? 0x1000U : 0x8000U;
      for (const std::uint32_t change : {0U, half, half - 1, half + 1}) {
        if (values.size() % 3 == 0 || change == half)
          values.push_back(std::bit_cast<float>(bits + change));
      }
    }
  }
  for (int exponent = -30; exponent < -10; ++exponent) {
    for (const float factor : {1.0F, 1.5F, 1.25F, 1.0000001F}) {
      values.push_back(std::ldexp(factor, exponent));
    }
  }
  values.insert(values.end(), {65504.0F, 65519.996F, 65520.0F, 3.4e38F, -0.0F,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(), 1e-45F});
  return values;
}

TEST(ConvertReference, RoundsHalvesToEven) {
  EXPECT_EQ(reference_round(Dtype::bf16, 1.0 + 0x1p-8), 1.0);
  EXPECT_EQ(reference_round(Dtype::bf16, 1.0 + 3 * 0x1p-8), 1.0 + 0x1p-6);
  EXPECT_EQ(reference_round(Dtype::f16, 65519.99), 65504.0);
  EXPECT_EQ(reference_round(Dtype::f16, 65520.0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(reference_round(Dtype::f16, 0x1p-25), 0.0);
  EXPECT_EQ(reference_round(Dtype::f16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(reference_round(Dtype::f32, 0.1), static_cast<double>(0.1F));
}

TEST(Convert, EveryNumberOfA16BitDtypeToEveryDtype) {
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const Dtype from : {Dtype::f16, Dtype::bf16}) {
      const auto values = all_of(from);
      for (const Dtype to : all_dtypes) {
        for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
          const std::string what =
              std::string(name_of(from)) + " to " + std::string(name_of(to)) + ", " + variant;
          expect_reference(values, run(exec, values, 4, from, to, variant), to, what);
        }
      }
    }
  });
}

TEST(Convert, FloatsThatAreHardToRound) {
  std::vector<float> values = hard_floats();
  std::mt19937 random(11);
  while (values.size() % 7 != 0 || values.size() < 300000) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const Dtype to : all_dtypes) {
      for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
        expect_reference(values, run(exec, values, 7, Dtype::f32, to, variant), to,
                         std::string(name_of(to)) + ", " + variant);
      }
    }
  });
}

TEST(Convert, EveryShapeAndStride) {
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {1, 16}, {3, 17}, {5, 64}, {2, 2049}, {7, 131}}) {
      for (const std::int64_t gap : {0, 1, 5}) {
        for (const Dtype from : all_dtypes) {
          const auto values = testing::random_values(rows * columns, 3, from);
          for (const Dtype to : all_dtypes) {
            expect_reference(values, run(exec, values, rows, from, to, "vector", gap), to,
                             "vector");
          }
        }
      }
    }
  });
}

TEST(Convert, LargeOutputsAreStreamed) {
  if (test::device_is_emulated()) GTEST_SKIP() << "skipped: a host's stores alone are streamed";
  const std::int64_t count = std::int64_t{17} << 20;  // beyond tile::streaming_bytes in 16 bits
  const auto values = testing::random_values(count, 5, Dtype::f32);
  const auto got =
      run(Kokkos::DefaultExecutionSpace(), values, 1024, Dtype::f32, Dtype::bf16, "vector");
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(got[i], round_to(Dtype::bf16, values[i])) << i;
  }
}

TEST(Convert, ShapesThatDifferAreRefused) {
  const ForwardArgs args{{nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f16, {4, 9}}};
  EXPECT_THROW(check(args), InputError);
  EXPECT_THROW((void)forward(serial_host(), args, {"vector", {}}), InputError);
  EXPECT_EQ(bytes({{nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f16, {4, 8}}}), 32 * 6);
}

RC_GTEST_PROP(ConvertProperty, NarrowingWhatIsNarrowChangesNothing, ()) {
  const auto bits = *rc::gen::nonEmpty(rc::gen::arbitrary<std::vector<std::uint32_t>>());
  std::vector<float> values;
  for (const std::uint32_t pattern : bits) {
    const auto value = std::bit_cast<float>(pattern);
    values.push_back(std::isnan(value) ? 0.0F : value);
  }
  const Kokkos::DefaultExecutionSpace exec;
  for (const Dtype to : {Dtype::f16, Dtype::bf16}) {
    const auto once = run(exec, values, 1, Dtype::f32, to, "vector");
    RC_ASSERT(run(exec, once, 1, Dtype::f32, to, "vector") == once);
    RC_ASSERT(run(exec, once, 1, to, Dtype::f32, "vector") == once);
  }
}

}  // namespace
}  // namespace katt::convert_dtype
