#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/parts.hpp"
#include "ops/rmsnorm_linear/bench/description.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/suite.hpp"

namespace katt::rmsnorm_linear {
namespace {

using Fwd = testing::Forward<Description>;
using Bwd = testing::Backward<Description>;

testing::Extents shape(std::int64_t tokens, std::int64_t hidden, std::int64_t out_features,
                       std::int64_t residual = 0) {
  return {{"tokens", tokens},
          {"hidden", hidden},
          {"out_features", out_features},
          {"residual", residual}};
}

struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static constexpr double gradient_tolerance = 1e-4;
  static std::vector<testing::Extents> shapes() {
    return {shape(3, 7, 5),     shape(1, 1, 1),        shape(1, 64, 33),   shape(16, 32, 64),
            shape(5, 67, 1, 1), shape(1, 128, 96, 1),  shape(37, 101, 13), shape(64, 96, 20, 1),
            shape(113, 40, 23), shape(70, 360, 17, 1), shape(120, 70, 40)};
  }
  /// A device's products read stored operands.
  static bool may_refuse(std::string_view variant, Backend backend) {
    return variant == "fused" && backend == Backend::cuda;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(RmsnormLinear, OperatorSuite, Cases);

template <class Pass>
testing::HostValues outputs_of(const testing::Problem& problem, const char* variant) {
  return *testing::outputs_of<Description, Pass>(serial_host(), problem, variant);
}

/// Shapes that every kind of product takes, for few tokens and many, with whole panels and parts.
std::vector<testing::Extents> many_shapes() {
  return {shape(1, 256, 64),   shape(4, 100, 30, 1),    shape(33, 200, 70),
          shape(64, 64, 64),   shape(65, 130, 50),      shape(200, 33, 17),
          shape(256, 360, 96), shape(150, 1100, 40, 1), shape(300, 72, 600, 1),
          shape(40, 2080, 3)};
}

template <class Pass>
void expect_the_bits_of_naive() {
  std::uint64_t seed = 50;
  for (const testing::Extents& extents : many_shapes()) {
    for (const Dtype dtype : all_dtypes) {
      const auto problem = testing::make_problem<Description, Pass>(extents, dtype, ++seed);
      EXPECT_TRUE(outputs_of<Pass>(problem, "fused") == outputs_of<Pass>(problem, "naive"))
          << testing::text_of(problem);
    }
  }
}

// The products scale rows as the norm does, and add the same terms in the same order.
TEST(RmsnormLinear, FusedGivesTheBitsOfNaive) {
  expect_the_bits_of_naive<Fwd>();
  expect_the_bits_of_naive<Bwd>();
}

/// x · factor, with rows that f32 cannot square among others.
template <class Pass>
void expect_scaled_rows(Dtype dtype, float large, float small) {
  auto problem = testing::make_problem<Description, Pass>(shape(70, 90, 20), dtype, 3);
  problem.parameters["eps"] = 0;
  std::vector<float>& x = problem.values["x"];
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t kind = i / 90 % 3;
    x[i] = round_to(dtype, x[i] * (kind == 0 ? 1.0F : kind == 1 ? large : small));
  }
  for (const char* variant : {"naive", "fused"}) {
    if (Pass::backward) {  // gradients of rows of so different sizes have no common limit
      const auto made = outputs_of<Pass>(problem, variant);
      for (const float value : made.at("dweight")) ASSERT_TRUE(std::isfinite(value)) << variant;
      for (const float value : made.at("dnorm_weight")) ASSERT_TRUE(std::isfinite(value));
    } else {
      testing::expect_outputs<Description, Pass>(problem, outputs_of<Pass>(problem, variant),
                                                 variant);
    }
  }
}

TEST(RmsnormLinear, RowsMayBeAsLargeOrAsSmallAsF32AllowsThem) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    expect_scaled_rows<Fwd>(dtype, 0x1p124F, 0x1p-120F);
    expect_scaled_rows<Bwd>(dtype, 0x1p100F, 0x1p-60F);
  }
  expect_scaled_rows<Fwd>(Dtype::f32, 0x1p100F, 0x1p-140F);  // 1 / √(mean of squares) is beyond f32
}

TEST(RmsnormLinear, ANanStaysInItsRow) {
  for (const Dtype dtype : all_dtypes) {
    auto problem = testing::make_problem<Description, Fwd>(shape(70, 40, 24), dtype);
    problem.values["x"][40 * 5 + 3] = std::numeric_limits<float>::quiet_NaN();
    for (const char* variant : {"naive", "fused"}) {
      const auto out = outputs_of<Fwd>(problem, variant).at("out");
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(std::isnan(out[i]), i / 24 == 5) << variant << " " << i;
      }
    }
  }
}

TEST(RmsnormLinear, NoRowsGiveZeroWeightGradients) {
  for (const Dtype dtype : all_dtypes) {
    const auto problem = testing::make_problem<Description, Bwd>(shape(0, 33, 5), dtype);
    for (const char* variant : {"naive", "fused"}) {
      const auto made = outputs_of<Bwd>(problem, variant);
      EXPECT_EQ(made.at("dnorm_weight"), std::vector<float>(33, 0.0F)) << variant;
      EXPECT_EQ(made.at("dweight"), std::vector<float>(33 * 5, 0.0F)) << variant;
    }
  }
}

TEST(RmsnormLinear, FusedNeedsNoMemoryForTheRows) {
  const TensorRef<2> x(nullptr, Dtype::bf16, {1 << 14, 1024});
  const TensorRef<1> norm_weight(nullptr, Dtype::bf16, {1024});
  const TensorRef<2> weight(nullptr, Dtype::bf16, {256, 1024});
  const TensorRef<2> out(nullptr, Dtype::bf16, {1 << 14, 256});
  const ForwardArgs forward{.x = x, .norm_weight = norm_weight, .weight = weight, .out = out};
  const BackwardArgs backward{.x = x,
                              .norm_weight = norm_weight,
                              .weight = weight,
                              .dout = out,
                              .dx = x,
                              .dnorm_weight = norm_weight,
                              .dweight = weight};
  const Host exec = serial_host();
  const auto saved = [&](const auto& table, const auto& args) {
    return table.workspace_bytes(exec, args, {"naive", {}}) -
           table.workspace_bytes(exec, args, {"fused", {}});
  };
  const std::size_t rows = aligned_bytes(x);
  EXPECT_GE(saved(forward_variants<Host>(), forward), rows - rows / 64);
  EXPECT_GE(saved(backward_variants<Host>(), backward), rows - rows / 64);
}

TEST(RmsnormLinear, AutoDependsOnTokensAndColumns) {
  const auto chosen = [](std::int64_t tokens, std::int64_t out_features, Dtype dtype) {
    const TensorRef<2> x(nullptr, dtype, {tokens, 64});
    const TensorRef<1> norm_weight(nullptr, dtype, {64});
    const TensorRef<2> weight(nullptr, dtype, {out_features, 64});
    const TensorRef<2> out(nullptr, dtype, {tokens, out_features});
    const ForwardArgs args{.x = x, .norm_weight = norm_weight, .weight = weight, .out = out};
    return forward_variants<Host>().resolve(serial_host(), args, {}).variant;
  };
  EXPECT_EQ(chosen(64, 64, Dtype::f32), "naive");
  EXPECT_EQ(chosen(65, 4096, Dtype::f32), "fused");
  EXPECT_EQ(chosen(65, 512, Dtype::bf16), "fused");
  EXPECT_EQ(chosen(65, 513, Dtype::bf16), "naive");
}

TEST(RmsnormLinearRefusal, NamesTheReason) {
  ForwardArgs args{.x = {nullptr, Dtype::f32, {4, 8}},
                   .norm_weight = {nullptr, Dtype::f32, {8}},
                   .weight = {nullptr, Dtype::f32, {3, 7}},
                   .out = {nullptr, Dtype::f32, {4, 3}}};
  const auto message = [&] { return test::message_of([&] { check(args); }); };
  EXPECT_EQ(message(), "rmsnorm_linear: weight: holds shape (3, 7), expected (3, 8)");
  args.weight = {nullptr, Dtype::f16, {3, 8}};
  EXPECT_EQ(message(), "rmsnorm_linear: weight: holds f16, expected f32");
  args.weight = {nullptr, Dtype::f32, {3, 8}};
  EXPECT_EQ(message(), "");
  args.residual_out = {nullptr, Dtype::f32, {4, 8}};
  EXPECT_EQ(message(), "rmsnorm_linear: residual_out: given without a residual");
  args.residual_out = {};
  args.eps = -1;
  EXPECT_EQ(message(), "rmsnorm_linear: eps -1.000000: expected a finite number ≥ 0");
  args.eps = 0;
  args.x = {nullptr, Dtype::f32, {4, 0}};
  EXPECT_EQ(message(), "rmsnorm_linear: hidden 0: expected at least 1");
}

}  // namespace
}  // namespace katt::rmsnorm_linear
