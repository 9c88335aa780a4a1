#include "ops/layernorm/bench/description.hpp"
#include "tests/ops/suite.hpp"

namespace katt::layernorm {
namespace {

struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static std::vector<testing::Extents> shapes() {
    return {{{"tokens", 3}, {"hidden", 7}},      {{"tokens", 1}, {"hidden", 1}},
            {{"tokens", 2}, {"hidden", 64}},     {{"tokens", 300}, {"hidden", 128}},
            {{"tokens", 3}, {"hidden", 4099}},   {{"tokens", 5000}, {"hidden", 16}},
            {{"tokens", 2200}, {"hidden", 512}}, {{"tokens", 137}, {"hidden", 67}}};
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
