#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/ternary_linear/bench/case.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"
#include "ops/ternary_linear/ternary_linear_digits.hpp"
#include "ops/ternary_linear/ternary_linear_ref.hpp"
#include "tests/ops/matrix.hpp"

namespace katt::ternary_linear {
namespace {

using testing::Matrix;

struct Shape {
  std::int64_t tokens, in_features, out_features;
};

// Powers of two, primes, length 1, ragged blocks of 256 and 320 weights, tails of four rows and
// tokens, two slices of rows for dx.
const std::vector<Shape> shapes{{1, 1, 1},    {1, 256, 64},  {3, 320, 37}, {4, 257, 5},
                                {7, 1031, 9}, {13, 64, 131}, {2, 640, 33}, {5, 67, 601}};

std::unique_ptr<ProblemData> make_problem(const Shape& s, Dtype dtype, std::uint64_t seed = 1) {
  auto data = std::make_unique<ProblemData>();
  data->dtype = dtype;
  data->shape.tokens = s.tokens;
  data->shape.in_features = s.in_features;
  data->shape.out_features = s.out_features;
  data->x = testing::random_values(s.tokens * s.in_features, seed, dtype);
  data->weight = testing::random_values(s.out_features * s.in_features, seed + 1, dtype, 0.05F);
  data->dout = testing::random_values(s.tokens * s.out_features, seed + 2, dtype);
  data->link();
  return data;
}

struct Result {
  std::vector<float> out, dx, dweight;
};

template <class Exec>
Result run(const Exec& exec, const ProblemData& data, const std::string& variant,
           std::int64_t gap = 0) {
  constexpr Backend backend = backend_of<Exec>();
  const HostProblem& p = data.shape;
  const PreparedWeight prepared(data, backend, 0);
  const PreparedWeight::OnDevice weight = prepared.upload(variant, backend);
  const Matrix x(backend, data.dtype, p.tokens, p.in_features, gap, data.x);
  const Matrix dout(backend, data.dtype, p.tokens, p.out_features, gap, data.dout);
  const Matrix out(backend, data.dtype, p.tokens, p.out_features, 2 * gap);
  const Matrix dx(backend, data.dtype, p.tokens, p.in_features, gap);
  const Matrix dweight(backend, data.dtype, p.out_features, p.in_features, gap);

  ForwardArgs args;
  args.x = x.ref();
  args.out = out.ref();
  weight.add_to(args);
  check(args);
  testing::run_variant(exec, forward_variants<Exec>(), args, {variant, {}});

  BackwardArgs back;
  back.x = x.ref();
  back.dout = dout.ref();
  back.dx = dx.ref();
  back.dweight = dweight.ref();
  weight.add_to(back);
  check(back);
  testing::run_variant(exec, backward_variants<Exec>(), back, {variant, {}});
  EXPECT_TRUE(out.gaps_untouched() && dx.gaps_untouched() && dweight.gaps_untouched());
  return {out.values(), dx.values(), dweight.values()};
}

template <class Exec>
void expect_reference(const Exec& exec, const ProblemData& data, const std::string& what,
                      std::int64_t gap = 0) {
  const Checks checks(data);
  for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
    const Result result = run(exec, data, variant, gap);
    const bench::Errors out = checks.forward(result.out);
    EXPECT_TRUE(out.status.is_ok()) << what << ", " << variant << ": " << out.status.reason();
    const bench::Errors gradients = checks.backward(result.dx, result.dweight);
    EXPECT_TRUE(gradients.status.is_ok())
        << what << ", " << variant << ": " << gradients.status.reason();
  }
}

class TernaryLinear : public ::testing::TestWithParam<Dtype> {};

TEST_P(TernaryLinear, MatchesReferenceForEveryShapeStrideVariantAndBackend) {
  for (const Shape& s : shapes) {
    const auto data = make_problem(s, GetParam());
    const std::string what = std::to_string(s.tokens) + " × " + std::to_string(s.in_features) +
                             " → " + std::to_string(s.out_features);
    for (const std::int64_t gap : {0, 3}) {
      testing::for_each_exec([&](const auto& exec) { expect_reference(exec, *data, what, gap); });
    }
  }
}

TEST_P(TernaryLinear, HalvesRoundToEven) {
  // The largest |x| is 127, so that s_x is 1 and every half is exact; mean |W| is 1.
  auto data = make_problem({1, 8, 4}, GetParam());
  data->x = {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 63.5F};
  data->weight.assign(32, 1.0F);
  for (std::size_t i = 0; i < 32; i += 4) {
    data->weight[i] = 0.5F;  // a half: rounds to 0
    data->weight[i + 1] = 1.5F;
    data->weight[i + 2] = -1.0F;
  }
  data->link();
  const Reference reference(data->shape);
  EXPECT_EQ(reference_weight_scale(data->shape), 1.0);
  EXPECT_EQ(reference_token(data->shape, 0).values,
            (std::vector<int>{127, 0, 2, 2, 0, -2, -2, 64}));
  // W_q of a row: 0 1 −1 1, twice
  testing::for_each_exec([&](const auto& exec) {
    for (const char* variant : {"naive", "packed2", "packed5"}) {
      const Result result = run(exec, *data, variant);
      for (const float value : result.out) EXPECT_EQ(value, 0 - 2 + 2 - 2 + 2 + 64) << variant;
    }
  });
}

TEST_P(TernaryLinear, HalfOfTheLargestIsAHalfWhateverTheLargest) {
  // 127 / largest is rounded, and largest / 2 times it may fall beside 63.5.
  constexpr std::int64_t tokens = 300;
  auto data = make_problem({tokens, 8, 1}, GetParam());
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float largest = round_to(GetParam(), 1.0F + 0.013F * static_cast<float>(t));
    for (std::int64_t i = 0; i < 8; ++i) data->x[t * 8 + i] = i == 0 ? largest : largest / 2;
  }
  data->weight.assign(8, 1.0F);
  data->link();
  for (std::int64_t t = 0; t < tokens; ++t) {
    EXPECT_EQ(reference_token(data->shape, t).values,
              (std::vector<int>{127, 64, 64, 64, 64, 64, 64, 64}));
  }
  testing::for_each_exec([&](const auto& exec) {
    for (const char* variant : {"naive", "packed2", "packed5"}) {
      const Result result = run(exec, *data, variant);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const double expected = 575.0 / 127.0 * data->x[t * 8];  // 568 with 63 for a half
        EXPECT_NEAR(result.out[t], expected, 0.006 * expected) << variant << ", token " << t;
      }
    }
  });
}

TEST_P(TernaryLinear, ZerosGiveZeros) {
  auto data = make_problem({3, 70, 10}, GetParam());
  data->x.assign(data->x.size(), 0.0F);
  data->link();
  for (const char* variant : {"naive", "packed2", "packed5"}) {
    for (const float value : run(Kokkos::DefaultExecutionSpace(), *data, variant).out) {
      ASSERT_EQ(value, 0.0F) << variant;
    }
  }
  data = make_problem({3, 70, 10}, GetParam());
  data->weight.assign(data->weight.size(), 0.0F);
  data->link();
  for (const char* variant : {"naive", "packed2", "packed5"}) {
    for (const float value : run(Kokkos::DefaultExecutionSpace(), *data, variant).out) {
      ASSERT_EQ(value, 0.0F) << variant;
    }
  }
}

TEST_P(TernaryLinear, NanAndLargeValues) {
  auto data = make_problem({3, 300, 10}, GetParam());
  for (float& value : data->x) value = round_to(data->dtype, value * 1e4F);
  data->link();
  testing::for_each_exec([&](const auto& exec) { expect_reference(exec, *data, "1e4"); });
  data->x[300 + 17] = std::numeric_limits<float>::quiet_NaN();
  for (const char* variant : {"naive", "packed2", "packed5"}) {
    const Result result = run(Kokkos::DefaultExecutionSpace(), *data, variant);
    EXPECT_TRUE(std::isfinite(result.out[0])) << variant;
    EXPECT_TRUE(std::isnan(result.out[10])) << variant;
    EXPECT_TRUE(std::isfinite(result.out[20])) << variant;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TernaryLinear, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(TernaryReference, GradientsMatchFiniteDifferencesOfTheLinearPart) {
  // The straight-through estimator is the gradient of x_d, W_d ↦ Σ dout · (x_d · W_dᵀ).
  const auto data = make_problem({3, 5, 4}, Dtype::f32);
  const HostProblem& p = data->shape;
  const Reference reference(p);
  const double scale = reference_weight_scale(p);
  std::vector<double> x, weight;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const QuantisedToken token = reference_token(p, t);
    for (const int value : token.values) x.push_back(value / token.scale);
  }
  for (const float w : p.weight) weight.push_back(reference_ternary(w, scale) * scale);
  const auto objective = [&] {
    double sum = 0;
    for (std::size_t t = 0; t < 3; ++t) {
      for (std::size_t o = 0; o < 4; ++o) {
        for (std::size_t i = 0; i < 5; ++i)
          sum += p.dout[t * 4 + o] * x[t * 5 + i] * weight[o * 5 + i];
      }
    }
    return sum;
  };
  const auto derivative = [&](double& value) {
    constexpr double step = 1e-4;
    const double before = value;
    value = before + step;
    const double above = objective();
    value = before - step;
    const double below = objective();
    value = before;
    return (above - below) / (2 * step);
  };
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(reference.dx(t, i), derivative(x[static_cast<std::size_t>(t * 5 + i)]), 1e-9);
    }
  }
  for (std::int64_t o = 0; o < 4; ++o) {
    for (std::int64_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(reference.dweight(o, i), derivative(weight[static_cast<std::size_t>(o * 5 + i)]),
                  1e-9);
    }
  }
}

/// Packs a weight of −1, 0, 1 and reads it back.
std::vector<float> round_trip(PackFormat format, const std::vector<float>& weight,
                              std::int64_t rows, std::int64_t columns, float& scale) {
  const Kokkos::DefaultHostExecutionSpace exec;
  constexpr Backend backend = backend_of<Kokkos::DefaultHostExecutionSpace>();
  const Matrix dense(backend, Dtype::f32, rows, columns, 5, weight);
  const Matrix back(backend, Dtype::f32, rows, columns, 2);
  const bench::Buffer bytes("packed", backend, packed_bytes(format, rows, columns));
  const bench::Buffer workspace("workspace", backend, pack_workspace_bytes(rows));
  const PackedTernary packed{bytes.data(), format, rows, columns};
  pack(exec, dense.ref(), packed, workspace.workspace());
  dequantise(exec, packed, 0, back.ref());
  exec.fence();
  EXPECT_TRUE(back.gaps_untouched());
  scale = packed.scales()[0];
  return back.values();
}

RC_GTEST_PROP(TernaryPacking, UnpackingGivesBackWhatWasPacked, ()) {
  const auto rows = *rc::gen::inRange<std::int64_t>(1, 6);
  const auto columns = *rc::gen::inRange<std::int64_t>(1, 1000);
  const auto digits = *rc::gen::container<std::vector<int>>(
      static_cast<std::size_t>(rows * columns), rc::gen::inRange(-1, 2));
  const std::vector<float> weight(digits.begin(), digits.end());
  for (const PackFormat format : {PackFormat::two_bit, PackFormat::five_per_byte}) {
    float scale = 0;
    const auto back = round_trip(format, weight, rows, columns, scale);
    for (std::size_t i = 0; i < weight.size(); ++i) RC_ASSERT(back[i] == weight[i] * scale);
  }
}

RC_GTEST_PROP(TernaryPacking, QuantisingWhatIsQuantisedChangesNothing, ()) {
  const auto columns = *rc::gen::inRange<std::int64_t>(1, 700);
  const auto weight =
      testing::random_values(3 * columns, *rc::gen::arbitrary<std::uint16_t>(), Dtype::f32);
  for (const PackFormat format : {PackFormat::two_bit, PackFormat::five_per_byte}) {
    float scale = 0;
    const auto once = round_trip(format, weight, 3, columns, scale);
    const auto twice = round_trip(format, once, 3, columns, scale);
    for (std::size_t i = 0; i < once.size(); ++i) {
      RC_ASSERT((once[i] > 0) == (twice[i] > 0));
      RC_ASSERT((once[i] < 0) == (twice[i] < 0));
    }
  }
}

RC_GTEST_PROP(TernaryLinearProperty, PackedVariantsGiveTheSameBits, ()) {
  const Shape shape{*rc::gen::inRange<std::int64_t>(1, 10),
                    *rc::gen::inRange<std::int64_t>(1, 1500),
                    *rc::gen::inRange<std::int64_t>(1, 80)};
  const auto data = make_problem(shape, Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  const Kokkos::DefaultExecutionSpace exec;
  RC_ASSERT(run(exec, *data, "packed2").out == run(exec, *data, "packed5").out);
}

TEST(TernaryPacking, SizesAreThoseOfTheFormats) {
  EXPECT_EQ(packed_bytes(PackFormat::two_bit, 4096, 4096), 4U * 4096 + 4096 * 1024);
  EXPECT_EQ(packed_bytes(PackFormat::five_per_byte, 4096, 4096), 4U * 4096 + 4096 * 13 * 64);
}

/// Every byte, at every place of a vector, unpacked as its definition says.
template <class Vector>
void expect_digits() {
  using impl::Digits;
  std::vector<std::uint8_t> bytes(256 + Vector::width);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 + 11);
  const std::vector<std::int8_t> ones(Vector::width, 1);
  const auto value = Vector::load(ones.data());
  for (std::size_t first = 0; first < 256; ++first) {
    Digits<Vector, PackFormat::two_bit> pairs(&bytes[first]);
    Digits<Vector, PackFormat::five_per_byte> triples(&bytes[first]);
    for (int digit = 0; digit < 5; ++digit) {
      int expected_pairs = 0;
      int expected_triples = 0;
      for (int i = 0; i < Vector::width; ++i) {
        const unsigned byte = bytes[first + static_cast<std::size_t>(i)];
        expected_pairs += static_cast<int>(byte >> (2 * digit) & 3U);
        unsigned rest = byte;
        for (int k = 0; k < digit; ++k) rest = rest * 3 % 256;
        expected_triples += static_cast<int>(rest * 3 / 256);
      }
      ASSERT_EQ(Vector::total(Vector::dot(Vector::zero(), triples.next(), value)),
                expected_triples);
      if (digit == 4) continue;
      ASSERT_EQ(Vector::total(Vector::dot(Vector::zero(), pairs.next(), value)), expected_pairs);
    }
  }
}

TEST(TernaryDigits, EveryByteOfEveryVectorType) {
  expect_digits<impl::FourBytes>();
  expect_digits<impl::HostBytes>();
}

TEST(TernaryDigits, SignedProducts) {
  const std::vector<std::uint8_t> digits(64, 2);
  std::vector<std::int8_t> values(64);
  int sum = 0;
  for (int i = 0; i < 64; ++i) {
    values[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(i * 4 - 128);
    sum += i < impl::HostBytes::width ? 2 * (i * 4 - 128) : 0;
  }
  using V = impl::HostBytes;
  EXPECT_EQ(V::total(V::dot(V::zero(), V::load(digits.data()), V::load(values.data()))), sum);
  using F = impl::FourBytes;
  EXPECT_EQ(F::total(F::dot(1, F::load(digits.data()), F::load(values.data()))),
            1 + 2 * (-128 - 124 - 120 - 116));
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST(TernaryThreads, SameBitsOnAnyNumberOfThreads) {
  const auto data = make_problem({9, 700, 131}, Dtype::bf16);
  for (const char* variant : {"naive", "packed2", "packed5"}) {
    const Result one = run(Kokkos::OpenMP(1), *data, variant);
    const Result two = run(Kokkos::OpenMP(2), *data, variant);
    EXPECT_EQ(one.out, two.out) << variant;
    EXPECT_EQ(one.dx, two.dx) << variant;
    EXPECT_EQ(one.dweight, two.dweight) << variant;
  }
}
#endif

TEST(TernaryRefusal, NamesTheReason) {
  const Host exec = serial_host();
  const auto data = make_problem({2, 40, 6}, Dtype::f32);
  const PreparedWeight prepared(*data, Backend::serial, 0);
  const auto weight = prepared.upload("packed2", Backend::serial);
  const Matrix x(Backend::serial, Dtype::f32, 2, 40, 0, data->x);
  const Matrix out(Backend::serial, Dtype::f32, 2, 6);
  ForwardArgs args;
  args.x = x.ref();
  args.out = out.ref();
  weight.add_to(args);
  EXPECT_EQ(forward(exec, args, {"packed5", {}}, {}).code(), Status::Code::skipped);
  EXPECT_EQ(forward(exec, args, {"naive", {}}, {}).code(), Status::Code::skipped);
  EXPECT_EQ(forward(exec, args, {"packed2", {8, 8}}, {}).code(), Status::Code::skipped);
  EXPECT_THROW((void)forward(exec, args, {"packed2", {}}, {}), InputError);  // no workspace
  EXPECT_THROW((void)forward(exec, args, {"packed3", {}}, {}), InputError);
  args.packed.in_features = 41;
  EXPECT_THROW(check(args), InputError);
  args.x.extent[1] = max_in_features + 1;
  EXPECT_THROW(check(args), InputError);
  const PackedTernary packed{weight.packed.data, PackFormat::two_bit, 6, 40};
  EXPECT_THROW(pack(exec, x.ref(), packed, {}), InputError);
}

TEST(TernaryWork, CountsPackedTraffic) {
  const auto data = make_problem({2, 320, 6}, Dtype::bf16);
  const ForwardArgs args = forward_shape(data->shape, Dtype::bf16);
  EXPECT_EQ(forward_flops(args), 2.0 * 2 * 320 * 6);
  EXPECT_EQ(forward_bytes(args), 64 + 6 * 64 + 2 * (2 * 320 + 2 * 6));
}

}  // namespace
}  // namespace katt::ternary_linear
