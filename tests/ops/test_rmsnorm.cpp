#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/rmsnorm/bench/description.hpp"
#include "ops/rmsnorm/rmsnorm_rows.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/suite.hpp"

namespace katt::rmsnorm {
namespace {

using Fwd = testing::Forward<Description>;
using Bwd = testing::Backward<Description>;
using testing::HostValues;
using testing::Problem;

/// With an option of the operator: powers of two, primes, length 1, whole vectors and tails, more
/// rows than one block of dweight, rows that are streamed with a tail, and rows too long for the
/// scratch of `stream`.
template <int residual, int quantise>
struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static constexpr bool has_gradient_check = residual == 0 && quantise == 0;
  static std::vector<testing::Extents> shapes() {
    return testing::extents_of({"tokens", "hidden"},
                               {{3, 7},
                                {1, 1},
                                {1, 64},
                                {2, 8},
                                {17, 31},
                                {37, 384},
                                {5, 1000},
                                {64, 97},
                                {300, 128},
                                {3, 4096},
                                {9, 96},
                                {3, 16416},
                                {1003, 96},
                                {1003, 67}},
                               {{"residual", residual}, {"quantise", quantise}});
  }
  static std::vector<std::vector<testing::Taken>> in_place() {
    if (quantise != 0) return {};
    if (residual != 0) return {{{"out", "x"}, {"residual_out", "residual"}}};
    return {{{"out", "x"}}, {{"dx", "x"}}, {{"dx", "dout"}}};
  }
};
using AllCases = ::testing::Types<Cases<0, 0>, Cases<1, 0>, Cases<0, 1>, Cases<1, 1>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Rmsnorm, OperatorSuite, AllCases);

template <class Pass>
Problem problem(std::int64_t tokens, std::int64_t hidden, Dtype dtype, std::uint64_t seed) {
  return testing::make_problem<Description, Pass>({{"tokens", tokens}, {"hidden", hidden}}, dtype,
                                                  seed);
}

RC_GTEST_PROP(RmsnormProperty, ScalingARowByAPowerOfTwoChangesNoBit, ()) {
  const auto hidden = *rc::gen::inRange<std::int64_t>(1, 200);
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const bool backward = *rc::gen::arbitrary<bool>();
  auto p = backward ? problem<Bwd>(2, hidden, Dtype::f32, seed)
                    : problem<Fwd>(2, hidden, Dtype::f32, seed);
  p.parameters["eps"] = 0;
  for (float& value : p.values["x"])
    value += std::copysign(0.5F, value);  // none too small beside the others
  const std::vector<float> out = testing::out_of<Description>(p);
  const int exponent = *rc::gen::inRange(-120, 120);
  for (float& value : p.values["x"]) value = std::ldexp(value, exponent);
  std::vector<float> scaled = testing::out_of<Description>(p);
  // dx is of degree −1 in x; where it leaves the range of f32 there is nothing to compare.
  if (backward) {
    for (float& value : scaled) value = std::ldexp(value, exponent);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (backward && std::abs(exponent) > 90) break;
    RC_ASSERT(scaled[i] == out[i]);
  }
}

RC_GTEST_PROP(RmsnormProperty, TheOutputHasUnitMeanSquare, ()) {
  const auto hidden = *rc::gen::inRange<std::int64_t>(1, 500);
  auto p = problem<Fwd>(1, hidden, Dtype::f32, *rc::gen::arbitrary<std::uint32_t>());
  p.parameters["eps"] = 0;
  p.values["weight"].assign(static_cast<std::size_t>(hidden), 1.0F);
  double sum = 0;
  for (const float y : testing::out_of<Description>(p)) sum += double{y} * double{y};
  RC_ASSERT(std::abs(sum / static_cast<double>(hidden) - 1.0) < 1e-5);
}

/// The largest relative difference from the reference over rows of f32.
template <class Pass, class Exec>
void expect_relative(const Exec& exec, const Problem& p, const char* variant, double limit) {
  const auto made = testing::outputs_of<Description, Pass>(exec, p, variant);
  if (!made && std::string(variant) == "stream") return;  // built for AVX-512 alone
  ASSERT_TRUE(made) << variant;
  const testing::ExpectedPart part = Description::expected(p).front();
  const std::vector<float>& got = made->at(part.output);
  const std::int64_t hidden = p.extent("hidden");
  std::map<std::int64_t, double> largest;
  for (const auto& value : part.values) {
    double& most = largest[value.index / hidden];
    most = std::max(most, std::abs(value.exact));
  }
  for (const auto& value : part.values) {
    ASSERT_NEAR(got[static_cast<std::size_t>(value.index)], value.exact,
                limit * largest[value.index / hidden])
        << variant << " row " << value.index / hidden << " column " << value.index % hidden;
  }
}

template <class Pass>
void expect_digits_of_any_magnitude() {
  const std::vector<float> magnitudes{1e-36F, 1e-30F, 1e-18F, 1e-10F, 1e10F,
                                      1e18F,  1e20F,  1e30F,  9e37F};
  for (const std::size_t hidden : {333, 336}) {  // with a tail; streamed
    auto p =
        problem<Pass>(std::ssize(magnitudes), static_cast<std::int64_t>(hidden), Dtype::f32, 41);
    p.parameters["eps"] = 0;
    std::vector<float>& x = p.values["x"];
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= magnitudes[i / hidden];
    // Gradients of huge rows are tiny: bring them back into range.
    std::vector<float>& dout = p.values["dout"];
    for (std::size_t i = 0; i < dout.size(); ++i) {
      dout[i] *= std::clamp(magnitudes[i / hidden], 1.0F, 1e18F);
    }
    testing::for_each_exec([&](const auto& exec) {
      for (const char* variant : {"naive", "fused", "stream"}) {
        expect_relative<Pass>(exec, p, variant, 2e-6);
      }
    });
  }
}

TEST(Rmsnorm, RowsOfAnyMagnitudeKeepTheirDigits) {
  expect_digits_of_any_magnitude<Fwd>();
  expect_digits_of_any_magnitude<Bwd>();
  // The largest values of the 16-bit dtypes.
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    const float most = dtype == Dtype::f16 ? 65504.0F : 0x1.FEp127F;
    auto p = problem<Fwd>(2, 4099, dtype, 43);
    std::vector<float>& x = p.values["x"];
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? most : -most;
    p.values["weight"].assign(4099, 1.0F);
    for (const float y : testing::out_of<Description>(p)) EXPECT_EQ(std::abs(y), 1.0F);
  }
}

TEST(Rmsnorm, NanAndInfinityStayInTheirRow) {
  auto p = problem<Fwd>(3, 40, Dtype::f32, 51);
  p.values["x"][7] = std::numeric_limits<float>::quiet_NaN();
  p.values["x"][47] = std::numeric_limits<float>::infinity();
  const std::vector<float> out = testing::out_of<Description>(p);
  for (std::size_t j = 0; j < 40; ++j) {
    EXPECT_TRUE(std::isnan(out[j]));
    EXPECT_TRUE(j == 7 ? std::isnan(out[40 + j]) : out[40 + j] == 0.0F);
    EXPECT_TRUE(std::isfinite(out[80 + j]));
  }
}

TEST(Rmsnorm, AFusedResidualChangesNoBit) {
  for (const Dtype dtype : all_dtypes) {
    const auto fused = testing::make_problem<Description, Fwd>(
        {{"tokens", 9}, {"hidden", 131}, {"residual", 1}}, dtype, 61);
    const auto made =
        testing::outputs_of<Description, Fwd>(Kokkos::DefaultExecutionSpace(), fused, "fused");
    auto apart = problem<Fwd>(9, 131, dtype, 61);
    apart.values["x"] = made->at("residual_out");
    EXPECT_EQ(made->at("out"), testing::out_of<Description>(apart));
  }
}

/// Views for the direct calls below.
struct Small {
  using Exec = Kokkos::DefaultHostExecutionSpace;
  using View = Kokkos::View<bf16**, Kokkos::LayoutRight, Kokkos::HostSpace>;
  static constexpr std::size_t tokens = 6;
  static constexpr std::size_t hidden = 75;
  Exec exec;
  View x{"test::x", tokens, hidden};
  View residual{"test::residual", tokens, hidden};
  View out{"test::out", tokens, hidden};
  View residual_out{"test::residual_out", tokens, hidden};
  Kokkos::View<bf16*, Kokkos::HostSpace> weight{"test::weight", hidden};
  Kokkos::View<std::int8_t**, Kokkos::LayoutRight, Kokkos::HostSpace> out_q{"test::out_q", tokens,
                                                                            hidden};
  Kokkos::View<float*, Kokkos::HostSpace> scale{"test::scale", tokens};
  ForwardArgs args;

  Small() {
    const auto fill = [](const auto& view, std::uint64_t seed) {
      std::vector<float> values(view.size());
      testing::fill(values, seed, Dtype::bf16);
      for (std::size_t i = 0; i < values.size(); ++i) view.data()[i] = bf16(values[i]);
    };
    fill(x, 1);
    fill(residual, 2);
    fill(weight, 3);
    args.x = x;
    args.weight = weight;
    args.residual = residual;
    args.out = out;
    args.residual_out = residual_out;
  }
  Status run(const std::string& variant) { return testing::run_forward(exec, args, {variant, {}}); }
};

template <class View>
std::vector<float> values_of(const View& view) {
  std::vector<float> values;
  for (std::size_t i = 0; i < view.extent(0); ++i) {
    for (std::size_t j = 0; j < view.extent(1); ++j)
      values.push_back(static_cast<float>(view(i, j)));
  }
  return values;
}

TEST(Rmsnorm, InPlaceAndStridedGiveTheSameBits) {
  for (const char* variant : {"naive", "fused", "stream"}) {
    Small dense;
    if (!dense.run(variant).is_ok()) continue;

    Small in_place;
    in_place.args.out = in_place.x;
    in_place.args.residual_out = in_place.residual;
    ASSERT_TRUE(in_place.run(variant).is_ok());
    EXPECT_EQ(values_of(in_place.x), values_of(dense.out)) << variant;
    EXPECT_EQ(values_of(in_place.residual), values_of(dense.residual_out)) << variant;

    Small strided;
    const Small::View wide("test::wide", Small::tokens, Small::hidden + 6);
    const auto inner = Kokkos::subview(wide, Kokkos::ALL,
                                       std::pair<std::size_t, std::size_t>(3, 3 + Small::hidden));
    Kokkos::deep_copy(inner, strided.x);
    strided.args.x = inner;
    strided.args.out = inner;
    ASSERT_TRUE(strided.run(variant).is_ok());
    EXPECT_EQ(values_of(inner), values_of(dense.out)) << variant;
    EXPECT_EQ(static_cast<float>(wide(2, 2)), 0.0F);
    EXPECT_EQ(static_cast<float>(wide(2, 3 + Small::hidden)), 0.0F);
  }
}

// s_x = 127 / max(max |x|, 1e-5), x_q = clamp(round(x · s_x), −128, 127), rounding half to even, of
// the output as it is stored: what ternary linear would make of it.
TEST(Rmsnorm, FusedQuantisationIsThatOfTheStoredOutput) {
  for (const char* variant : {"naive", "fused", "stream"}) {
    for (const bool keep : {true, false}) {
      Small plain;
      if (!plain.run(variant).is_ok()) continue;
      Small small;
      small.args.out_q = small.out_q.data();
      small.args.out_q_scale = small.scale.data();
      if (!keep) small.args.out = {};
      ASSERT_TRUE(small.run(variant).is_ok());
      if (keep) {
        EXPECT_EQ(values_of(small.out), values_of(plain.out)) << variant;
      }
      for (std::size_t i = 0; i < Small::tokens; ++i) {
        float most = 1e-5F;
        for (std::size_t j = 0; j < Small::hidden; ++j) {
          most = std::max(most, std::abs(static_cast<float>(plain.out(i, j))));
        }
        EXPECT_EQ(small.scale(i), 127.0F / most);
        for (std::size_t j = 0; j < Small::hidden; ++j) {
          const float q = std::nearbyint(static_cast<float>(plain.out(i, j)) * small.scale(i));
          EXPECT_EQ(small.out_q(i, j), static_cast<int>(std::clamp(q, -128.0F, 127.0F))) << variant;
        }
      }
    }
  }
}

TEST(Rmsnorm, AnOutputThatIsNoNumberMakesItsScaleNan) {
  for (const char* variant : {"naive", "fused", "stream"}) {
    for (const std::size_t column : {std::size_t{3}, Small::hidden - 1}) {
      Small small;
      small.args.residual = small.args.residual_out = {};
      small.args.out_q = small.out_q.data();
      small.args.out_q_scale = small.scale.data();
      small.x(2, column) = bf16(std::numeric_limits<float>::quiet_NaN());
      if (!small.run(variant).is_ok()) continue;
      for (std::size_t i = 0; i < Small::tokens; ++i) {
        EXPECT_EQ(std::isnan(small.scale(i)), i == 2) << variant << " row " << i;
      }
      small.x(2, column) = bf16(1.0F);
      small.weight(column) = bf16(std::numeric_limits<float>::quiet_NaN());
      ASSERT_TRUE(small.run(variant).is_ok());
      for (std::size_t i = 0; i < Small::tokens; ++i) EXPECT_TRUE(std::isnan(small.scale(i)));
    }
  }
}

TEST(Rmsnorm, BytesOfAVectorAreThoseOfItsElements) {
  using Vec = tile::VecOf<Host>;
  constexpr int lanes = tile::lanes_v<Host>;
  std::vector<float> values;
  for (float value = -130.5F; value <= 130.5F; value += 0.25F) values.push_back(value);
  values.resize(values.size() / (2 * lanes) * (2 * lanes));
  for (std::size_t i = 0; i < values.size(); i += 2 * lanes) {
    std::int8_t bytes[2 * lanes];
    const auto expect = [&](const char* how) {
      for (int k = 0; k < 2 * lanes; ++k) {
        ASSERT_EQ(bytes[k], impl::to_int8(values[i + k])) << how << ' ' << values[i + k];
      }
    };
    impl::store_int8(bytes, tile::load<Vec>(&values[i]));
    impl::store_int8(bytes + lanes, tile::load<Vec>(&values[i + lanes]));
    expect("one by one");
    Vec pair[2];
    tile::load_pairs(&values[i], pair[0], pair[1]);
    impl::store_int8<bf16>(bytes, pair);
    expect("even and odd");
  }
}

TEST(Rmsnorm, AutoStreamsOutputsThatAreLargeEnough) {
  const auto chosen = [](std::int64_t bytes, bool adds) {
    const std::int64_t tokens = bytes / (4096 * 2);
    ForwardArgs args;
    if (adds) {
      args.residual = {nullptr, Dtype::bf16, {tokens, 4096}};
      args.residual_out = {nullptr, Dtype::bf16, {tokens, 4096}};
    }
    args.x = {nullptr, Dtype::bf16, {tokens, 4096}};
    args.weight = {nullptr, Dtype::bf16, {4096}};
    args.out = {nullptr, Dtype::bf16, {tokens, 4096}};
    return forward_variants<Host>().resolve(Host(), args, {}).variant;
  };
  const char* stream = tile::can_stream_v<Host> ? "stream" : "fused";
  EXPECT_EQ(chosen(tile::stream_variant_bytes, false), stream);
  EXPECT_EQ(chosen(tile::stream_variant_bytes - 8192, false), "fused");
  // Two outputs side by side, in half lines, reach memory slowly.
  EXPECT_EQ(chosen(tile::stream_variant_bytes, true), tile::stores_whole_lines ? stream : "fused");
}

TEST(Rmsnorm, NoRowsGiveAZeroWeightGradient) {
  const auto p = problem<Bwd>(0, 33, Dtype::f32, 71);
  for (const char* variant : {"naive", "fused"}) {
    const auto made = testing::outputs_of<Description, Bwd>(serial_host(), p, variant);
    EXPECT_EQ(made->at("dweight"), std::vector<float>(33, 0.0F));
  }
}

TEST(Rmsnorm, WhatDoesNotFitIsRefused) {
  const auto refused = [](const auto& change, const std::string& message) {
    Small small;
    change(small);
    const std::string told = test::message_of([&] { (void)small.run("fused"); });
    EXPECT_TRUE(test::contains(told, message));
  };
  refused([](Small& s) { s.args.weight.extent[0] = 74; },
          "weight: holds shape (74), expected (75)");
  refused([](Small& s) { s.args.out.extent[0] = 5; }, "out: holds shape (5, 75), expected (6, 75)");
  refused([](Small& s) { s.args.residual_out = {}; }, "residual_out: holds shape (0, 0)");
  refused([](Small& s) { s.args.residual = {}; }, "residual_out: given without a residual");
  refused([](Small& s) { s.args.residual.dtype = Dtype::f16; },
          "residual: holds f16, expected bf16");
  refused([](Small& s) { s.args.out = {}; }, "out: missing");
  refused([](Small& s) { s.args.out_q = s.out_q.data(); }, "out_q and out_q_scale: one is missing");
  refused([](Small& s) { s.args.eps = -1.0F; }, "eps -1");
  refused([](Small& s) { s.args.eps = std::nanf(""); }, "eps nan");
}

}  // namespace
}  // namespace katt::rmsnorm
