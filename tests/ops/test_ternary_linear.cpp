#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "ops/ternary_linear/bench/description.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"
#include "ops/ternary_linear/ternary_linear_digits.hpp"
#include "ops/ternary_linear/ternary_linear_kernels.hpp"
#include "ops/ternary_linear/ternary_linear_ref.hpp"
#include "tests/ops/suite.hpp"
#include "tests/slope.hpp"

namespace katt::ternary_linear {
namespace {

using Fwd = testing::Forward<Description>;
using testing::Matrix;
using testing::Problem;

testing::Extents shape_of(std::int64_t tokens, std::int64_t in_features,
                          std::int64_t out_features) {
  return {{"tokens", tokens}, {"in_features", in_features}, {"out_features", out_features}};
}

// Powers of two, primes, length 1, ragged blocks of 256 and 320 weights, tails of four rows and
// tokens, two slices of rows for dx; for tiles two sections of the depth, more tokens than an item takes.
struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static std::vector<testing::Extents> shapes() {
    return {shape_of(1, 1, 1),      shape_of(1, 256, 64), shape_of(3, 320, 37),
            shape_of(4, 257, 5),    shape_of(7, 1031, 9), shape_of(13, 64, 131),
            shape_of(2, 640, 33),   shape_of(5, 67, 601), shape_of(261, 70, 17),
            shape_of(33, 2570, 45), shape_of(9, 700, 131)};
  }
  static constexpr bool has_gradient_check = false;  // of roundings; below, of the linear part
  static constexpr bool naive_is_blas = true;
  static std::vector<std::vector<testing::Taken>> in_place() { return {{{"dx", "x"}}}; }
};

Problem make_problem(const testing::Extents& shape, Dtype dtype, std::uint64_t seed = 1) {
  return testing::make_problem<Description, Fwd>(shape, dtype, seed);
}

template <class Exec>
std::vector<float> run(const Exec& exec, const Problem& problem, const std::string& variant) {
  const auto made = testing::outputs_of<Description, Fwd>(exec, problem, variant);
  return made ? made->find("out")->second : std::vector<float>{};
}

class TernaryLinear : public ::testing::TestWithParam<Dtype> {};

TEST_P(TernaryLinear, HalvesRoundToEven) {
  // The largest |x| is 127, so that s_x is 1 and every half is exact; mean |W| is 1.
  Problem problem = make_problem(shape_of(1, 8, 4), GetParam());
  problem.values["x"] = {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 63.5F};
  std::vector<float>& weight = problem.values["weight"];
  weight.assign(32, 1.0F);
  for (std::size_t i = 0; i < 32; i += 4) {
    weight[i] = 0.5F;  // a half: rounds to 0
    weight[i + 1] = 1.5F;
    weight[i + 2] = -1.0F;
  }
  const HostProblem host = Description::host(problem);
  EXPECT_EQ(reference_weight_scale(host), 1.0);
  EXPECT_EQ(reference_token(host, 0).values, (std::vector<int>{127, 0, 2, 2, 0, -2, -2, 64}));
  // W_q of a row: 0 1 −1 1, twice
  testing::for_each_exec([&](const auto& exec) {
    for (const char* variant : {"naive", "packed2", "packed5"}) {
      const std::vector<float> out = run(exec, problem, variant);
      EXPECT_EQ(out, std::vector<float>(4, 0 - 2 + 2 - 2 + 2 + 64)) << variant;
    }
  });
}

TEST_P(TernaryLinear, HalfOfTheLargestIsAHalfWhateverTheLargest) {
  // 127 / largest is rounded, and largest / 2 times it may fall beside 63.5.
  constexpr std::int64_t tokens = 300;
  Problem problem = make_problem(shape_of(tokens, 8, 1), GetParam());
  std::vector<float>& x = problem.values["x"];
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float largest = round_to(GetParam(), 1.0F + 0.013F * static_cast<float>(t));
    for (std::int64_t i = 0; i < 8; ++i) x[t * 8 + i] = i == 0 ? largest : largest / 2;
  }
  problem.values["weight"].assign(8, 1.0F);
  for (std::int64_t t = 0; t < tokens; ++t) {
    EXPECT_EQ(reference_token(Description::host(problem), t).values,
              (std::vector<int>{127, 64, 64, 64, 64, 64, 64, 64}));
  }
  testing::for_each_exec([&](const auto& exec) {
    for (const char* variant : {"naive", "packed2", "packed5"}) {
      const std::vector<float> out = run(exec, problem, variant);
      ASSERT_EQ(std::ssize(out), tokens) << variant;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const double expected = 575.0 / 127.0 * x[t * 8];  // 568 with 63 for a half
        EXPECT_NEAR(out[t], expected, 0.006 * expected) << variant << ", token " << t;
      }
    }
  });
}

TEST_P(TernaryLinear, ATokenGetsTheSameBitsInEveryBatchAndOnEveryThread) {
  constexpr std::int64_t tokens = 43, in_features = 2600, out_features = 70;
  const Problem batch = make_problem(shape_of(tokens, in_features, out_features), GetParam());
  Problem one = make_problem(shape_of(1, in_features, out_features), GetParam());
  one.values["weight"] = batch.values.at("weight");
  const Kokkos::DefaultExecutionSpace exec;
  for (const char* variant : {"packed2", "packed5"}) {
    const std::vector<float> out = run(exec, batch, variant);
    ASSERT_EQ(std::ssize(out), tokens * out_features) << variant;
    for (const std::int64_t token : {0, 15, 16, 31, 42}) {
      const auto row = batch.values.at("x").begin() + token * in_features;
      one.values["x"].assign(row, row + in_features);
      const auto expected = out.begin() + token * out_features;
      EXPECT_EQ(run(serial_host(), one, variant),
                std::vector<float>(expected, expected + out_features))
          << variant << ", token " << token;
    }
  }
}

TEST_P(TernaryLinear, ZerosGiveZeros) {
  for (const char* zeros : {"x", "weight"}) {
    Problem problem = make_problem(shape_of(3, 70, 10), GetParam());
    for (float& value : problem.values[zeros]) value = 0;
    for (const char* variant : {"naive", "packed2", "packed5"}) {
      EXPECT_EQ(run(Kokkos::DefaultExecutionSpace(), problem, variant),
                std::vector<float>(30, 0.0F))
          << variant;
    }
  }
}

TEST_P(TernaryLinear, NoOutputsGiveNoGradient) {
  const Host exec = serial_host();
  const testing::Matrix x(Backend::serial, GetParam(), 2, 33, 0, std::vector<float>(66, 1.0F));
  const testing::Matrix none(Backend::serial, GetParam(), 2, 0);
  const testing::Matrix dx(Backend::serial, GetParam(), 2, 33);
  const testing::Matrix dweight(Backend::serial, GetParam(), 0, 33);
  std::byte nothing{};  // scales and rows of no outputs
  for (const auto& [variant, format] : {std::pair{"packed2", PackFormat::two_bit},
                                        std::pair{"packed5", PackFormat::five_per_byte}}) {
    const BackwardArgs args{.x = x.ref(),
                            .dout = none.ref(),
                            .packed = {&nothing, format, 0, 33},
                            .dx = dx.ref(),
                            .dweight = dweight.ref()};
    testing::run_variant(exec, backward_variants<Host>(), args, {variant, {}});
    EXPECT_EQ(dx.values(), std::vector<float>(66, 0.0F)) << variant;
  }
}

TEST_P(TernaryLinear, NanAndLargeValues) {
  testing::for_each_pass<Description>([&]<class Pass>(Pass) {
    auto problem = testing::make_problem<Description, Pass>(shape_of(3, 300, 10), GetParam());
    for (float& value : problem.values["x"]) value = round_to(GetParam(), value * 1e4F);
    testing::for_each_exec([&](const auto& exec) {
      for (const std::string& variant : testing::variants_of<Pass>(exec)) {
        const auto made = testing::outputs_of<Description, Pass>(exec, problem, variant);
        ASSERT_TRUE(made) << variant;
        testing::expect_outputs<Description, Pass>(problem, *made, variant);
      }
    });
  });
  Problem problem = make_problem(shape_of(3, 300, 10), GetParam());
  problem.values["x"][300 + 17] = std::numeric_limits<float>::quiet_NaN();
  for (const char* variant : {"naive", "packed2", "packed5"}) {
    const auto out = run(Kokkos::DefaultExecutionSpace(), problem, variant);
    ASSERT_EQ(out.size(), 30U) << variant;
    EXPECT_TRUE(std::isfinite(out[0])) << variant;
    EXPECT_TRUE(std::isnan(out[10])) << variant;
    EXPECT_TRUE(std::isfinite(out[20])) << variant;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, TernaryLinear, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(TernaryQuantisation, QuotientsOfSixteenBitsRoundTheSameInF32) {
  for (const int exponent : {0, 1, 2, 5}) {
    int differing = 0;
    for (int a = 1024; a < 2048; ++a) {
      const f16 x(std::ldexp(static_cast<float>(a), -10 - exponent));
      for (int b = exponent == 0 ? a : 1024; b < 2048; ++b) {
        const double largest = std::ldexp(b, -10);
        impl::with_divisor<f16>(largest, [&](auto divisor) {
          if (impl::quantised(x, divisor) != impl::quantised(x, largest)) ++differing;
        });
      }
    }
    EXPECT_EQ(differing, 0) << exponent;
  }
}

TEST(TernaryReference, GradientsMatchFiniteDifferencesOfTheLinearPart) {
  // The straight-through estimator is the gradient of x_d, W_d ↦ Σ dout · (x_d · W_dᵀ).
  const auto problem = testing::make_problem<Description, testing::Backward<Description>>(
      shape_of(3, 5, 4), Dtype::f32);
  const HostProblem p = Description::host(problem);
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
  const auto derivative = [&](double& value) { return test::slope(value, 1e-4, objective); };
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

TEST(TernaryPacking, NoWeightIsFiniteBesideOneThatIsNot) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> weight(3 * 300, 0.5F);
    weight[7] = value;
    for (const PackFormat format : {PackFormat::two_bit, PackFormat::five_per_byte}) {
      float scale = 0;
      for (const float one : round_trip(format, weight, 3, 300, scale)) {
        EXPECT_FALSE(std::isfinite(one));
      }
    }
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
  const auto shape =
      shape_of(*rc::gen::inRange<std::int64_t>(1, 40), *rc::gen::inRange<std::int64_t>(1, 1500),
               *rc::gen::inRange<std::int64_t>(1, 80));
  const auto problem = make_problem(shape, Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  const Kokkos::DefaultExecutionSpace exec;
  const std::vector<float> out = run(exec, problem, "packed2");
  RC_ASSERT(!out.empty());
  RC_ASSERT(out == run(exec, problem, "packed5"));
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
    alignas(64) std::array<std::uint8_t, Vector::width> vector{};
    std::copy_n(&bytes[first], vector.size(), vector.begin());
    Digits<Vector, PackFormat::two_bit> pairs(vector.data());
    Digits<Vector, PackFormat::five_per_byte> triples(vector.data());
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

TEST(TernaryRefusal, NamesTheReason) {
  const Host exec = serial_host();
  const auto problem = make_problem(shape_of(2, 40, 6), Dtype::f32);
  const bench::TensorOperatorData& op = bench::data_of<Description>();
  const bench::DeviceInputs inputs(op.name, op.forward, problem, Backend::serial,
                                   op.derive_on(Backend::serial, 1));
  const bench::DeviceOutputs outputs(op.name, op.forward, problem, Backend::serial, 0,
                                     inputs.of_variant("packed2"));
  const bench::Tensors tensors = bench::tensors_of(op.forward, problem, inputs, outputs);
  auto args = bench::arguments<forward_schema, ForwardArgs>(tensors);
  Description::bind(args, tensors);
  EXPECT_EQ(forward(exec, args, {"packed5", {}}, {}).code(), Status::Code::skipped);
  EXPECT_EQ(forward(exec, args, {"naive", {}}, {}).code(), Status::Code::skipped);
  EXPECT_EQ(forward(exec, args, {"packed2", {8, 8}}, {}).code(), Status::Code::skipped);
  EXPECT_THROW((void)forward(exec, args, {"packed2", {}}, {}), InputError);  // no workspace
  EXPECT_THROW((void)forward(exec, args, {"packed3", {}}, {}), InputError);
  const PackedTernary packed = args.packed;
  args.packed.in_features = 41;
  EXPECT_THROW(check(args), InputError);
  args.packed = packed;
  args.dense = {nullptr, Dtype::f32, {6, 41}};
  EXPECT_THROW(check(args), InputError);
  args.dense = {};
  check(args);
  args.x.extent[1] = max_in_features + 1;
  EXPECT_THROW(check(args), InputError);
  EXPECT_THROW(pack(exec, args.x, packed, {}), InputError);
}

TEST(TernaryRefusal, AddedGradientsAreF32) {
  BackwardArgs args{.x = {nullptr, Dtype::bf16, {2, 40}},
                    .dout = {nullptr, Dtype::bf16, {2, 6}},
                    .dx = {nullptr, Dtype::bf16, {2, 40}},
                    .dweight = {nullptr, Dtype::bf16, {6, 40}}};
  check(args);
  args.adds_dweight = true;
  EXPECT_THROW(check(args), InputError);
  args.dweight.dtype = Dtype::f32;
  check(args);
  args.adds_dweight = false;
  EXPECT_THROW(check(args), InputError);
}

/// A point of a sweep.
bench::Point point_of(const testing::Extents& shape, const char* pass, Dtype dtype) {
  bench::Point point;
  point.pass = pass;
  point.backend = Backend::serial;
  point.dtype = dtype;
  for (const auto& [axis, value] : shape) point.values[axis] = value;
  return point;
}

TEST(TernarySweep, PeersGetTheWeightAsNaiveReadsIt) {
  const auto op = bench::make_tensor_operator(bench::data_of<Description>());
  for (const char* pass : {"forward", "backward"}) {
    const auto made = op->make_case(point_of(shape_of(3, 40, 6), pass, Dtype::f32));
    const auto foreign = made->foreign();
    const auto weight = std::ranges::find(foreign->inputs, "weight", &bench::ForeignTensor::name);
    ASSERT_NE(weight, foreign->inputs.end());
    EXPECT_EQ(foreign->inputs.size(), pass == std::string("forward") ? 2U : 3U);
    ASSERT_EQ(weight->values.size(), 240U);
    std::set<float> distinct(weight->values.begin(), weight->values.end());
    EXPECT_EQ(distinct.size(), 3U);
    EXPECT_EQ(*distinct.begin(), -*distinct.rbegin());
  }
}

TEST(TernarySweep, ForecastsTheWeightOfTheVariant) {
  const auto op = bench::make_tensor_operator(bench::data_of<Description>());
  const bench::Point point = point_of(shape_of(2, 640, 33), "forward", Dtype::bf16);
  const auto outputs = [&](const char* variant) {
    return op->footprint(point, {.variant = variant}).outputs - 2 * 33 * sizeof(bf16);
  };
  EXPECT_EQ(outputs("naive"), 33 * 640 * sizeof(bf16));
  EXPECT_EQ(outputs("packed2"), packed_bytes(PackFormat::two_bit, 33, 640));
  EXPECT_EQ(outputs("packed5"), packed_bytes(PackFormat::five_per_byte, 33, 640));
  EXPECT_EQ(outputs("auto"), outputs("packed2"));
}

TEST(TernaryWork, CountsPackedTraffic) {
  const ForwardArgs args{.x = {nullptr, Dtype::bf16, {2, 320}},
                         .out = {nullptr, Dtype::bf16, {2, 6}}};
  EXPECT_EQ(forward_flops(args), 2.0 * 2 * 320 * 6);
  EXPECT_EQ(forward_bytes(args), 64 + 6 * 64 + 2 * (2 * 320 + 2 * 6));
}

}  // namespace
}  // namespace katt::ternary_linear

namespace katt {
INSTANTIATE_TYPED_TEST_SUITE_P(TernaryLinear, OperatorSuite, ternary_linear::Cases);
}  // namespace katt
