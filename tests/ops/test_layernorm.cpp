#include <cmath>
#include <limits>

#include "ops/layernorm/bench/description.hpp"
#include "tests/ops/suite.hpp"

namespace katt::layernorm {
namespace {

struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static std::vector<testing::Extents> shapes() {
    return testing::extents_of(
        {"tokens", "hidden"},
        {{3, 7}, {1, 1}, {2, 64}, {300, 128}, {3, 4099}, {5000, 16}, {2200, 512}, {137, 67}});
  }
  static std::vector<std::vector<testing::Taken>> in_place() {
    return {{{"out", "x"}}, {{"dx", "x"}}, {{"dx", "dout"}}};
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Layernorm, OperatorSuite, Cases);

TEST(Layernorm, ALargeMeanCostsNoDigits) {
  using Fwd = testing::Forward<Description>;
  auto p = testing::make_problem<Description, Fwd>({{"tokens", 4}, {"hidden", 500}}, Dtype::f32);
  for (float& x : p.values["x"]) x = std::round(x * 64.0F) / 64.0F + 4096.0F;
  const auto made = testing::outputs_of<Description, Fwd>(serial_host(), p, "fused");
  testing::expect_outputs<Description, Fwd>(p, *made, "fused", 1e-5);
}

// f32 rounds the sum of such a row by more than σ, its mean by 0.008 σ.
TEST(Layernorm, AMeanOfALongRowIsRoundedOnce) {
  using Fwd = testing::Forward<Description>;
  auto p = testing::make_problem<Description, Fwd>({{"tokens", 2}, {"hidden", 300007}}, Dtype::f32);
  for (float& x : p.values["x"]) x = std::round(x * 4.0F) + 0x1.1p20F;
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const std::string& variant : testing::variants_of<Fwd>(exec)) {
      const auto made = testing::outputs_of<Description, Fwd>(exec, p, variant);
      testing::expect_outputs<Description, Fwd>(p, *made, variant, 0.03);
    }
  });
}

/// Holds the results of rows times 2^exponent, and of gradients that are large enough for dx, against the
/// reference, and, without eps, against the bits of the rows as they are.
template <class Pass>
void expect_scale_invariance(Dtype dtype, int exponent, std::int64_t hidden) {
  const int of_dout = dtype == Dtype::f16 ? 12 : 24;
  auto p = testing::make_problem<Description, Pass>({{"tokens", 5}, {"hidden", hidden}}, dtype, 7);
  for (const double eps : {1e-5, 0.0}) {
    p.parameters["eps"] = eps;
    auto large = p;
    for (float& x : large.values["x"]) x = std::ldexp(x, exponent);
    for (float& dout : large.values["dout"]) dout = std::ldexp(dout, of_dout);
    testing::for_each_exec([&]<class Exec>(const Exec& exec) {
      for (const std::string& variant : testing::variants_of<Pass>(exec)) {
        const auto made = testing::outputs_of<Description, Pass>(exec, large, variant);
        ASSERT_TRUE(made) << variant;
        testing::expect_outputs<Description, Pass>(large, *made, variant);
        if (eps > 0 || dtype == Dtype::f16) continue;  // f16 has no such exponents
        const auto plain = testing::outputs_of<Description, Pass>(exec, p, variant);
        for (const auto& [name, values] : *plain) {
          const int power = (Pass::backward ? of_dout : 0) - (name == "dx" ? exponent : 0);
          for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_EQ(std::ldexp(made->at(name)[i], -power), values[i])
                << variant << " " << name << " " << i << ", " << testing::text_of(large);
          }
        }
      }
    });
  }
}

TEST(Layernorm, RowsOfAnyMagnitudeKeepTheirDigits) {
  testing::for_each_pass<Description>([]<class Pass>(Pass) {
    for (const std::int64_t hidden : {67, 336}) {  // with a tail; in whole vectors
      expect_scale_invariance<Pass>(Dtype::f16, 12, hidden);
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        for (const int exponent : {62, 66, 123}) {
          expect_scale_invariance<Pass>(dtype, exponent, hidden);
        }
      }
    }
  });
}

TEST(Layernorm, NanAndInfinityStayInTheirRow) {
  auto p = testing::make_problem<Description, testing::Forward<Description>>(
      {{"tokens", 3}, {"hidden", 40}}, Dtype::f32);
  p.values["x"][7] = std::numeric_limits<float>::quiet_NaN();
  p.values["x"][47] = std::numeric_limits<float>::infinity();
  const auto made =
      testing::outputs_of<Description, testing::Forward<Description>>(serial_host(), p, "fused");
  for (std::size_t i = 0; i < 120; ++i) EXPECT_EQ(std::isfinite(made->at("out")[i]), i >= 80) << i;
}

TEST(Layernorm, WhatDoesNotFitIsRefused) {
  ForwardArgs args{.x = {nullptr, Dtype::f32, {4, 8}},
                   .weight = {nullptr, Dtype::f32, {8}},
                   .bias = {nullptr, Dtype::f32, {8}},
                   .out = {nullptr, Dtype::f32, {4, 8}}};
  args.bias.extent[0] = 7;
  EXPECT_THROW(check(args), InputError);
  args.bias.extent[0] = 8;
  args.eps = -1.0F;
  EXPECT_THROW(check(args), InputError);
}

}  // namespace
}  // namespace katt::layernorm
