#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "op/schema.hpp"
#include "op/tensors.hpp"
#include "tests/message_of.hpp"

namespace katt {
namespace {

struct Options {
  const std::int64_t* lengths = nullptr;  ///< (batch)
  ConstTensorRef<2> bias{};               ///< (batch, columns)
  bool causal = false;
};

struct Args {
  ConstTensorRef<2> x;           ///< (batch, columns)
  ConstTensorRef<1> weight;      ///< (columns)
  ConstTensorRef<2> residual{};  ///< with residual_out
  TensorRef<2> residual_out{};
  TensorRef<2> out;              ///< may be left out where out_q is wanted
  std::int8_t* out_q = nullptr;  ///< with out_q_scale
  float* out_q_scale = nullptr;
  TensorRef<1> lse{};  ///< optional, f32
  float eps = 1e-5F;
  Options options{};
};

std::int64_t draw_length(double u, const testing::Problem& p) {
  return static_cast<std::int64_t>(u * static_cast<double>(p.extent("columns")));
}

constexpr auto toy = op::schema(
    "toy", op::in("x", &Args::x, "batch columns"),
    op::in("weight", &Args::weight, "columns").scale(0.5F),
    op::in("residual", &Args::residual, "batch columns").when("residual"),
    op::out("residual_out", &Args::residual_out, "batch columns").when("residual"),
    op::in("bias", op::path(&Args::options, &Options::bias), "batch columns").when("bias"),
    op::in("lengths", op::path(&Args::options, &Options::lengths), "batch")
        .when("lengths")
        .draw(draw_length),
    op::in("seen_by_peers", "batch"),
    op::out("out", &Args::out, "batch columns").unless("quantise"),
    op::out("out_q", &Args::out_q, "batch columns").when("quantise"),
    op::out("out_q_scale", &Args::out_q_scale, "batch").when("quantise"),
    op::out("lse", &Args::lse, "batch").f32().optional(), op::number("eps", &Args::eps, 0),
    op::number("causal", op::path(&Args::options, &Options::causal)).optional());

/// Tensors without a use for their values.
struct Memory {
  std::array<float, 64> values{};
  std::array<std::int64_t, 4> lengths{};
  std::array<std::int8_t, 64> bytes{};

  template <int Rank>
  TensorRef<Rank> tensor(std::array<std::int64_t, Rank> extents, Dtype dtype = Dtype::bf16) {
    return {values.data(), dtype, extents};
  }
  Args args() {
    return {.x = tensor<2>({3, 4}), .weight = tensor<1>({4}), .out = tensor<2>({3, 4})};
  }
};

std::string refusal(const Args& args) {
  return test::message_of([&] { op::check<toy>(args); });
}

TEST(Schema, HoldsShapesDtypesAndNumbersAgainstTheFirstThatSaysThem) {
  Memory memory;
  EXPECT_EQ(refusal(memory.args()), "");
  Args args = memory.args();
  args.weight = memory.tensor<1>({5});
  EXPECT_EQ(refusal(args), "toy: weight: holds shape (5), expected (4)");
  args = memory.args();
  args.out = memory.tensor<2>({3, 4}, Dtype::f32);
  EXPECT_EQ(refusal(args), "toy: out: holds f32, expected bf16");
  args = memory.args();
  args.lse = memory.tensor<1>({3}, Dtype::f32);
  EXPECT_EQ(refusal(args), "");
  args.lse = memory.tensor<1>({3});
  EXPECT_EQ(refusal(args), "toy: lse: holds bf16, expected f32");
  args = memory.args();
  args.eps = -1;
  EXPECT_EQ(refusal(args), "toy: eps -1.000000: expected a finite number ≥ 0");
  args.eps = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(refusal(args), "");
}

TEST(Schema, TensorsOfOneConditionAreThereTogether) {
  Memory memory;
  Args args = memory.args();
  args.residual = memory.tensor<2>({3, 4});
  EXPECT_EQ(refusal(args), "toy: residual_out: holds shape (0, 0), expected (3, 4)");
  args.residual_out = memory.tensor<2>({3, 4});
  EXPECT_EQ(refusal(args), "");
  args.residual = {};
  EXPECT_EQ(refusal(args), "toy: residual_out: given without a residual");
  args = memory.args();
  args.out_q = memory.bytes.data();
  EXPECT_EQ(refusal(args), "toy: out_q and out_q_scale: one is missing, expected both or none");
  args.out_q_scale = memory.values.data();
  args.out = {};
  EXPECT_EQ(refusal(args), "");
  args.out_q = nullptr;
  EXPECT_EQ(refusal(args), "toy: out_q and out_q_scale: one is missing, expected both or none");
}

TEST(Schema, ReachesMembersOfMembers) {
  Memory memory;
  Args args = memory.args();
  args.options.bias = memory.tensor<2>({3, 5});
  EXPECT_EQ(refusal(args), "toy: bias: holds shape (3, 5), expected (3, 4)");
}

TEST(Schema, CountsTensorsThatAreThereOnce) {
  Memory memory;
  Args args = memory.args();
  const double plain = 2 * (12 + 4 + 12);
  EXPECT_EQ(op::bytes<toy>(args), plain);
  args.options.lengths = memory.lengths.data();
  EXPECT_EQ(op::bytes<toy>(args), plain + 3 * 8);
  args.out_q = memory.bytes.data();
  args.out_q_scale = memory.values.data();
  EXPECT_EQ(op::bytes<toy>(args), plain + 3 * 8 + 12 + 3 * 4);
}

TEST(Schema, TellsTheTensorsOfSweeps) {
  const bench::TensorSpecs inputs = bench::specs<toy, Args>(false);
  std::vector<std::string> names;
  for (const auto& spec : inputs) names.push_back(spec.name);
  EXPECT_EQ(names, (std::vector<std::string>{"x", "weight", "residual", "bias", "lengths",
                                             "seen_by_peers"}));
  EXPECT_EQ(inputs[0].letters, "(B, C)");
  EXPECT_EQ(inputs[1].scale, 0.5F);
  EXPECT_EQ(inputs[4].element, bench::Element::i64);
  EXPECT_EQ((bench::specs<toy, Args>(true)[2].element), bench::Element::i8);
  const auto parameters = bench::parameters<toy, Args>({});
  ASSERT_EQ(parameters.size(), 1U);
  EXPECT_EQ(parameters.at("eps").fallback, 1e-5);  // not the nearest f32
}

TEST(Schema, MakesArgumentsOfTensorsByName) {
  Memory memory;
  testing::Problem problem;
  problem.parameters = {{"eps", 0.25}};
  problem.extents = {{"causal", 1}};
  bench::Tensors tensors(problem);
  TensorRef<4> ref(memory.values.data(), Dtype::f16, {1, 1, 3, 4});
  tensors.set("x", ref);
  ref.data = memory.lengths.data();
  tensors.set("lengths", ref);
  const Args args = bench::arguments<toy, Args>(tensors);
  EXPECT_EQ(args.x.data, memory.values.data());
  EXPECT_EQ(args.x.extent, (std::array<std::int64_t, 2>{3, 4}));
  EXPECT_EQ(args.options.lengths, memory.lengths.data());
  EXPECT_FALSE(args.out);
  EXPECT_EQ(args.eps, 0.25F);
  EXPECT_TRUE(args.options.causal);
}

}  // namespace
}  // namespace katt
