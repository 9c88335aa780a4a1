#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "measure/measure.hpp"
#include "measure/profile.hpp"
#include "nn/llama_block/llama_block.hpp"
#include "nn/llama_block/llama_block_ref.hpp"
#include "op/reference/fill.hpp"
#include "op/reference/sample.hpp"
#include "op/registry.hpp"
#include "tests/message_of.hpp"
#include "tests/op/keeps_answer.hpp"

namespace katt::llama_block {

void register_op(bench::Registry& registry);

namespace {

const bench::Operator& block() {
  static const bench::Registry registry = [] {
    bench::Registry made;
    register_op(made);
    return made;
  }();
  return registry.find("llama_block");
}

bench::Point point(const Shape& s, const std::string& pass, Dtype dtype) {
  bench::Point at;
  at.pass = pass;
  at.threads = 2;
  at.dtype = dtype;
  at.values = {{"batch", s.batch},      {"seq_q", s.seq},
               {"hidden", s.hidden},    {"intermediate", s.intermediate},
               {"heads", s.heads},      {"kv_heads", s.kv_heads},
               {"head_dim", s.head_dim}};
  return at;
}

/// Batch, seq, hidden, intermediate, heads, kv_heads, head_dim: odd lengths, grouped heads, a q that is
/// wider or narrower than the stream; the last has more tokens than are checked at once.
const std::vector<Shape> shapes{{1, 1, 136, 200, 2, 2, 8},
                                {2, 17, 41, 67, 6, 2, 16},
                                {1, 33, 96, 64, 4, 1, 8},
                                {3, 61, 40, 80, 3, 3, 24}};

struct Values {
  explicit Values(const Shape& s) {
    std::uint64_t stream = 3;
    const auto make = [&](const char* name, std::int64_t count, float scale) {
      std::vector<float>& filled = of[name];
      filled.resize(static_cast<std::size_t>(count));
      testing::fill(filled, ++stream, Dtype::f32, scale);
    };
    make("stream", s.tokens() * s.hidden, 1);
    make("delta", s.tokens() * s.hidden, 1);
    make("dout", s.tokens() * s.hidden, 1);
    make("input_norm", s.hidden, 1);
    make("post_norm", s.hidden, 1);
    make("qkv", s.qkv_size() * s.hidden, 0.3F);
    make("o", s.hidden * s.q_size(), 0.3F);
    make("gate_up", 2 * s.intermediate * s.hidden, 0.3F);
    make("down", s.hidden * s.intermediate, 0.3F);
  }
  HostProblem problem(const Shape& s) const {
    return {.shape = s,
            .dtype = Dtype::f32,
            .stream = of.at("stream"),
            .delta = of.at("delta"),
            .input_norm = of.at("input_norm"),
            .qkv = of.at("qkv"),
            .o = of.at("o"),
            .post_norm = of.at("post_norm"),
            .gate_up = of.at("gate_up"),
            .down = of.at("down"),
            .dout = of.at("dout")};
  }
  std::map<std::string, std::vector<float>> of;
};

/// Σ dout · (h + delta_out)
double loss(const Values& values, const Shape& s, const std::vector<std::int64_t>& tokens) {
  const Expected out = expected_forward(values.problem(s), tokens);
  double sum = 0;
  for (const char* name : {"h", "delta_out"}) {
    for (const testing::ExpectedValue& value : out.at(name)) {
      sum += value.exact * values.of.at("dout")[static_cast<std::size_t>(value.index)];
    }
  }
  return sum;
}

TEST(LlamaBlockReference, GradientsAreFiniteDifferences) {
  const Shape s{.batch = 2,
                .seq = 5,
                .hidden = 12,
                .intermediate = 14,
                .heads = 4,
                .kv_heads = 2,
                .head_dim = 8};
  const std::vector<std::int64_t> tokens = sampled_tokens(s);
  ASSERT_EQ(std::ssize(tokens), s.tokens());
  Values values(s);
  const Expected gradients = expected_backward(values.problem(s), tokens);
  const std::map<std::string, std::string> inputs{{"dx", "stream"},
                                                  {"dqkv", "qkv"},
                                                  {"do", "o"},
                                                  {"dinput_norm", "input_norm"},
                                                  {"ddown", "down"},
                                                  {"dgate_up", "gate_up"},
                                                  {"dpost_norm", "post_norm"}};
  ASSERT_EQ(gradients.size(), inputs.size());
  for (const auto& [gradient, input] : inputs) {
    const auto& expected = gradients.at(gradient);
    for (std::size_t i = 0; i < expected.size(); i += 1 + expected.size() / 12) {
      float& value = values.of.at(input)[static_cast<std::size_t>(expected[i].index)];
      const float before = value;
      value = before + 0x1p-9F;
      const float above = value;
      const double up = loss(values, s, tokens);
      value = before - 0x1p-9F;
      const double slope = (up - loss(values, s, tokens)) / (above - value);
      value = before;
      EXPECT_NEAR(slope, expected[i].exact, 2e-4 * (1 + std::abs(slope)))
          << gradient << " at " << expected[i].index;
      EXPECT_NEAR(expected[i].unfused, expected[i].exact, 1e-4 * (1 + std::abs(slope)));
    }
  }
}

TEST(LlamaBlockReference, TheRowsOfFewTokensAreThoseOfAll) {
  const Shape s = shapes[1];
  const Values values(s);
  const std::vector<std::int64_t> all = sampled_tokens(s);
  const std::vector<std::int64_t> few{3, 16, 20};
  const Expected whole = expected_forward(values.problem(s), all);
  for (const auto& [name, rows] : expected_forward(values.problem(s), few)) {
    for (const testing::ExpectedValue& value : rows) {
      EXPECT_EQ(value.exact, whole.at(name)[static_cast<std::size_t>(value.index)].exact) << name;
    }
  }
}

class LlamaBlock : public ::testing::TestWithParam<std::tuple<Shape, const char*, Dtype>> {};

TEST_P(LlamaBlock, EveryCompositionAgreesWithTheReference) {
  const auto& [shape, pass, dtype] = GetParam();
  const bench::Point at = point(shape, pass, dtype);
  block().validate(at);
  const auto made = block().make_case(at);
  for (const bench::VariantInfo& variant : block().variants(at.backend, pass)) {
    SCOPED_TRACE(variant.name);
    const Config config{.variant = variant.name};
    ASSERT_TRUE(made->supports(config).is_ok());
    const auto candidate = made->prepare(config);
    candidate->poison();
    candidate->restore();
    candidate->run();
    candidate->fence();
    const bench::Errors errors = candidate->verify();
    EXPECT_TRUE(errors.status.is_ok()) << errors.status.reason();
    EXPECT_GT(errors.max_abs, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LlamaBlock,
                         ::testing::Combine(::testing::ValuesIn(shapes),
                                            ::testing::Values("forward", "backward"),
                                            ::testing::ValuesIn(all_dtypes)),
                         [](const auto& info) {
                           const Shape& s = std::get<0>(info.param);
                           return std::string(std::get<1>(info.param)) + "_" +
                                  std::string(name_of(std::get<2>(info.param))) + "_" +
                                  std::to_string(s.tokens());
                         });

TEST(LlamaBlockCase, ARunWithoutRestoreIsNotTakenForARightOne) {
  const auto made = block().make_case(point(shapes[1], "backward", Dtype::f32));
  const auto candidate = made->prepare({.variant = "fused"});
  ASSERT_TRUE(candidate->restore());
  candidate->run();
  candidate->run();
  candidate->fence();
  EXPECT_FALSE(candidate->verify().status.is_ok());
  const auto forward = block().make_case(point(shapes[1], "forward", Dtype::f32));
  EXPECT_FALSE(forward->prepare({.variant = "fused"})->restore());
}

TEST(LlamaBlockCase, AKeptAnswerFails) {
  const bench::StopFlag stop{false};
  for (const char* pass : {"forward", "backward"}) {
    const auto made = block().make_case(point(shapes[2], pass, Dtype::f32));
    const auto prepare = [&] { return made->prepare({.variant = "fused"}); };
    std::vector<bench::Contender> contenders;
    contenders.push_back(bench::enter(prepare));
    contenders.push_back(
        bench::enter([&] { return std::make_unique<test::KeepsAnswer>(prepare()); }));
    for (bench::Contender& contender : contenders) {
      contender.inputs = made.get();
      EXPECT_TRUE(contender.measured.status.is_ok()) << "with the first inputs";
    }
    ASSERT_TRUE(bench::measure(
        contenders, {.rounds = 7}, [] {}, stop));
    EXPECT_TRUE(contenders[0].measured.status.is_ok()) << contenders[0].measured.status.reason();
    EXPECT_TRUE(test::contains(contenders[1].measured.status.reason(), "other inputs: "));
  }
}

/// With more tokens than are checked a run of its own computes the gradients that are compared.
TEST(LlamaBlockCase, ManyTokensAreComparedAfterAChange) {
  const auto made = block().make_case(point(shapes[3], "backward", Dtype::f32));
  const auto candidate = made->prepare({.variant = "fused"});
  for (std::uint64_t round = 0; round < 4; ++round) {
    const testing::SampleSeed rows(round);
    candidate->inputs_changed(made->change(round, round % 2 == 1), round % 2 == 1);
    candidate->restore();
    candidate->run();
    candidate->fence();
    const bench::Errors errors = candidate->verify();
    EXPECT_TRUE(errors.status.is_ok()) << errors.status.reason();
  }
}

TEST(LlamaBlockCase, FusionsSaveMemory) {
  Shape s = shapes[2];
  s.seq = 512;
  for (const char* pass : {"forward", "backward"}) {
    const bench::Point at = point(s, pass, Dtype::f32);
    const auto bytes = [&](const char* variant) {
      return block().footprint(at, {.variant = variant}).workspace;
    };
    // The scores of four heads, less the tile scratch of the fused kernel.
    const std::size_t scores = std::size_t{4} * 4 * 512 * 512;
    EXPECT_GT(bytes("naive"), bytes("fused") + scores * 9 / 10);
    EXPECT_GT(bytes("naive"), bytes("naive_rope"));
    EXPECT_GE(bytes("naive_attention"), bytes("fused") + scores * 9 / 10);
  }
}

TEST(LlamaBlockCase, EveryOperatorIsARegionOfTheProfile) {
  Shape shape = shapes[1];
  const auto calls = [&](const char* pass, const char* variant) {
    const auto made = block().make_case(point(shape, pass, Dtype::f32));
    const auto candidate = made->prepare({.variant = variant});
    std::map<std::string, double> found;
    for (const io::ProfileRow& row : bench::profile(*candidate, 1).rows) {
      if (row.depth == 0) found[row.name] = row.calls;
    }
    return found;
  };
  const std::map<std::string, double> forward{{"katt::rmsnorm", 2},
                                              {"katt::linear", 4},
                                              {"katt::rope", 1},
                                              {"katt::attention", 1},
                                              {"katt::swiglu", 1}};
  for (const char* variant : {"naive", "fused"}) EXPECT_EQ(calls("forward", variant), forward);
  auto backward = forward;
  backward["katt::linear"] = 8;  // dx and the weight's gradient
  backward["katt::nn::add_gradient"] = 2;
  EXPECT_EQ(calls("backward", "fused"), backward);
  backward["katt::nn::add_gradient"] = 6;
  EXPECT_EQ(calls("backward", "naive"), backward);
  // For many tokens the activation is part of a product.
  shape.seq = nn::few_tokens;
  auto gated = forward;
  gated.erase("katt::swiglu");
  EXPECT_EQ(calls("forward", "naive"), forward);
  EXPECT_EQ(calls("forward", "fused"), gated);
}

TEST(LlamaBlockCase, RefusesShapesThatMeanNothing) {
  Shape s = shapes[1];
  s.kv_heads = 4;
  EXPECT_THROW(block().validate(point(s, "forward", Dtype::f32)), InputError);
  s.kv_heads = 2;
  s.head_dim = 12;
  EXPECT_THROW(block().validate(point(s, "forward", Dtype::f32)), InputError);
}

TEST(LlamaBlockWork, CountsProductsAndVisibleScores) {
  const Shape s{2, 3, 8, 16, 2, 1, 8};
  const double products = 2.0 * 6 * (8 * 32 + 16 * 8 + 3 * 16 * 8);
  const double attention = 4.0 * 2 * 2 * 8 * (1 + 2 + 3);
  EXPECT_EQ(flops(s, false), products + attention);
  EXPECT_EQ(flops(s, true), 2 * products + 2.5 * attention);
}

}  // namespace
}  // namespace katt::llama_block
