#include "ops/layernorm/bench/description.hpp"
#include "tests/ops/suite.hpp"

namespace katt::layernorm {
namespace {

struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static std::vector<testing::Extents> shapes() {
    std::vector<testing::Extents> all;
    for (const auto& [tokens, hidden] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {3, 7}, {1, 1}, {1, 64}, {2, 8}, {300, 128}, {3, 4099}, {1025, 48}, {37, 67}}) {
      all.push_back({{"tokens", tokens}, {"hidden", hidden}});
    }
    return all;
  }
  static std::vector<std::vector<testing::Taken>> in_place() { return {{{"out", "x"}}}; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Layernorm, OperatorSuite, Cases);

TEST(Layernorm, AConstantAddedToARowChangesLittle) {
  auto p = testing::make_problem<Description, testing::Forward<Description>>(
      {{"tokens", 4}, {"hidden", 500}}, Dtype::f32);
  for (float& x : p.values["x"]) x = std::round(x * 64.0F) / 64.0F + 4096.0F;
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const char* variant : {"naive", "fused"}) {
      const auto made =
          testing::outputs_of<Description, testing::Forward<Description>>(exec, p, variant);
      testing::expect_outputs<Description, testing::Forward<Description>>(p, *made, variant, 1e-5);
    }
  });
}

TEST(Layernorm, WhatDoesNotFitIsRefused) {
  const ConstTensorRef<2> x{nullptr, Dtype::f32, {4, 8}};
  ForwardArgs args{.x = x,
                   .weight = {nullptr, Dtype::f32, {8}},
                   .bias = {nullptr, Dtype::f32, {7}},
                   .out = {nullptr, Dtype::f32, {4, 8}}};
  EXPECT_THROW(check(args), InputError);
  args.bias.extent[0] = 8;
  EXPECT_NO_THROW(check(args));
  args.eps = -1.0F;
  EXPECT_THROW(check(args), InputError);
}

}  // namespace
}  // namespace katt::layernorm
