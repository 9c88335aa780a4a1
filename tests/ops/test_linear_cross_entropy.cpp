#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/linear_cross_entropy/bench/description.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_ref.hpp"
#include "tests/ops/suite.hpp"
#include "tests/slope.hpp"

namespace katt::linear_cross_entropy {
namespace {

using testing::HostValues;
using testing::Problem;

testing::Extents shape_of(std::int64_t tokens, std::int64_t hidden, std::int64_t vocab) {
  return {{"tokens", tokens}, {"hidden", hidden}, {"vocab", vocab}};
}

// Powers of two, primes, length 1, and vocabularies of several blocks with a ragged last one.
struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static std::vector<testing::Extents> shapes() {
    return {shape_of(1, 1, 1),     shape_of(1, 8, 2),     shape_of(5, 17, 31),
            shape_of(32, 64, 256), shape_of(3, 24, 9001), shape_of(41, 13, 523),
            shape_of(70, 24, 1500)};
  }
  static constexpr bool has_gradient_check = false;  // the loss has no dout; below
};

/// A problem of a pass whose logits are `scale` times as far apart as those of a sweep, with a token
/// that does not count.
template <class Pass>
Problem make_problem(const testing::Extents& shape, Dtype dtype, std::uint64_t seed = 1,
                     float scale = 8) {
  auto problem = testing::make_problem<Description, Pass>(shape, dtype, seed);
  for (float& value : problem.values["weight"]) value = round_to(dtype, value * scale);
  if (problem.extent("tokens") > 2) {
    problem.integers["targets"][1] = cross_entropy::default_ignore_index;
  }
  return problem;
}

TEST(LinearCrossEntropyReference, GradientsMatchFiniteDifferences) {
  // few digits, so that a step is exact
  Problem problem = make_problem<testing::Forward<Description>>(shape_of(4, 5, 6), Dtype::bf16);
  const HostProblem p = Description::host(problem);
  std::vector<double> lse;
  for (std::int64_t t = 0; t < p.tokens; ++t) lse.push_back(reference_lse(p, t));
  const auto derivative = [&](float& value) {
    return test::slope(value, 0x1p-10F, [&] { return reference_loss(p); });
  };
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto gradient = reference_dhidden(p, t);
    for (std::int64_t h = 0; h < p.hidden_size; ++h) {
      const auto at = static_cast<std::size_t>(t * p.hidden_size + h);
      EXPECT_NEAR(derivative(problem.values["hidden"][at]), gradient[static_cast<std::size_t>(h)],
                  1e-6);
    }
  }
  for (std::int64_t v = 0; v < p.vocab; ++v) {
    const auto gradient = reference_dweight(p, v, lse);
    for (std::int64_t h = 0; h < p.hidden_size; ++h) {
      const auto at = static_cast<std::size_t>(v * p.hidden_size + h);
      EXPECT_NEAR(derivative(problem.values["weight"][at]), gradient[static_cast<std::size_t>(h)],
                  1e-6);
    }
  }
}

class LinearCrossEntropy : public ::testing::TestWithParam<Dtype> {};

TEST_P(LinearCrossEntropy, MatchesReferenceWhereATokenDoesNotCount) {
  testing::for_each_pass<Description>([&]<class Pass>(Pass) {
    for (const auto& shape : {shape_of(5, 17, 31), shape_of(41, 13, 523)}) {
      const Problem problem = make_problem<Pass>(shape, GetParam());
      const auto expected = Description::expected(problem);
      testing::for_each_exec([&](const auto& exec) {
        for (const char* variant : {"naive", "fused"}) {
          const auto made = testing::outputs_of<Description, Pass>(exec, problem, variant);
          ASSERT_TRUE(made) << variant;
          const auto errors =
              bench::compare(Pass::data(), problem, expected, *made, Description::compare);
          EXPECT_TRUE(errors.status.is_ok())
              << variant << ", " << testing::text_of(problem) << ": " << errors.status.reason();
        }
      });
    }
  });
}

TEST_P(LinearCrossEntropy, HoldsForLargeLogits) {
  testing::for_each_pass<Description>([&]<class Pass>(Pass) {
    const auto problem = make_problem<Pass>(shape_of(6, 64, 300), GetParam(), 3, 32000);  // ±10⁴
    for (const char* variant : {"naive", "fused"}) {
      const auto made =
          testing::outputs_of<Description, Pass>(Kokkos::DefaultExecutionSpace(), problem, variant);
      ASSERT_TRUE(made) << variant;
      for (const char* output : {"loss", "dhidden", "dweight"}) {
        if (!made->contains(output)) continue;
        for (const float value : made->find(output)->second) {
          ASSERT_TRUE(std::isfinite(value)) << variant << ": " << output;
        }
      }
    }
  });
}

TEST_P(LinearCrossEntropy, NothingCountedGivesNanAndNoGradient) {
  const Kokkos::DefaultExecutionSpace exec;
  for (const char* variant : {"naive", "fused"}) {
    testing::for_each_pass<Description>([&]<class Pass>(Pass) {
      Problem problem = make_problem<Pass>(shape_of(5, 16, 33), GetParam());
      problem.integers["targets"].assign(5, cross_entropy::default_ignore_index);
      const auto made = testing::outputs_of<Description, Pass>(exec, problem, variant);
      ASSERT_TRUE(made) << variant;
      if constexpr (Pass::backward) {
        for (const auto& [name, values] : *made) {
          EXPECT_EQ(values, std::vector<float>(values.size(), 0.0F)) << variant << ": " << name;
        }
      } else {
        EXPECT_TRUE(std::isnan(made->find("loss")->second[0])) << variant;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LinearCrossEntropy, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(LinearCrossEntropy, KeptLogitsGiveTheSameBits) {
  using Fwd = testing::Forward<Description>;
  using Bwd = testing::Backward<Description>;
  const Kokkos::DefaultExecutionSpace exec;
  for (const testing::Extents& shape : Cases::shapes()) {
    Problem forward = make_problem<Fwd>(shape, GetParam());
    Problem backward = make_problem<Bwd>(shape, GetParam());
    const auto outputs_of = [&]<class Pass>(Pass, const Problem& problem) {
      return testing::outputs_of<Description, Pass>(exec, problem, "fused").value();
    };
    const HostValues again = outputs_of(Fwd{}, forward);
    backward.values["statistics"] = again.find("statistics")->second;
    const HostValues gradients = outputs_of(Bwd{}, backward);
    for (Problem* problem : {&forward, &backward}) problem->extents["kept_logits"] = 1;
    HostValues kept = outputs_of(Fwd{}, forward);
    backward.values["kept_logits"] = kept["kept_logits"];
    kept.erase("kept_logits");
    EXPECT_TRUE(again == kept);
    EXPECT_TRUE(gradients == outputs_of(Bwd{}, backward));
  }
}

TEST(LinearCrossEntropyMemory, KeptLogitsTakeThePlaceOfABlock) {
  const Kokkos::DefaultExecutionSpace exec;
  BackwardArgs args{.hidden = {nullptr, Dtype::f32, {64, 32}},
                    .weight = {nullptr, Dtype::f32, {1000, 32}},
                    .statistics = {nullptr, Dtype::f32, {64, 2}},
                    .dhidden = {nullptr, Dtype::f32, {64, 32}},
                    .dweight = {nullptr, Dtype::f32, {1000, 32}}};
  const auto bytes = [&] {
    return backward_variants<Kokkos::DefaultExecutionSpace>().workspace_bytes(exec, args,
                                                                              {"fused", {}});
  };
  const std::size_t again = bytes();
  args.kept_logits = {nullptr, Dtype::f32, {64, 1000}};
  EXPECT_EQ(again - bytes(), 64 * 1000 * sizeof(float));
}

TEST(LinearCrossEntropyMemory, FusedWorkspaceDoesNotGrowWithTheVocabulary) {
  const auto bytes = [&](std::int64_t vocab, Dtype dtype, bool backward) {
    std::size_t workspace = 0;
    testing::for_each_pass<Description>([&]<class Pass>(Pass) {
      if (Pass::backward != backward) return;
      const auto problem =
          testing::shape_problem<Description, Pass>(shape_of(2048, 512, vocab), dtype);
      workspace = testing::decide<Pass>(Kokkos::DefaultExecutionSpace(),
                                        bench::shapes_of(Pass::data(), problem), {"fused", {}})
                      ->workspace_bytes();
    });
    return workspace;
  };
  for (const Dtype dtype : all_dtypes) {
    for (const bool backward : {false, true}) {
      // Blocks are alike, so that those of 8192 are up to a seventh narrower than the widest, and the
      // last one may be cut otherwise by the GEMM.
      const std::size_t one_block = bytes(8192, dtype, backward);
      for (const std::int64_t vocab : {32000, 50257, 128256, 262144}) {
        EXPECT_LE(bytes(vocab, dtype, backward), one_block + one_block / 4) << vocab;
      }
      EXPECT_LT(one_block, std::size_t{64} << 20);
    }
  }
}

ForwardArgs forward_args(Dtype dtype) {
  return {.hidden = {nullptr, dtype, {4, 8}},
          .weight = {nullptr, dtype, {16, 8}},
          .loss = {nullptr, Dtype::f32, {1}},
          .statistics = {nullptr, Dtype::f32, {4, 2}}};
}
BackwardArgs backward_args(Dtype dtype) {
  return {.hidden = {nullptr, dtype, {4, 8}},
          .weight = {nullptr, dtype, {16, 8}},
          .statistics = {nullptr, Dtype::f32, {4, 2}},
          .dhidden = {nullptr, dtype, {4, 8}},
          .dweight = {nullptr, dtype, {16, 8}}};
}

TEST(LinearCrossEntropyRefusal, NamesTheReason) {
  const Host exec = serial_host();
  const ForwardArgs args = forward_args(Dtype::f32);
  const BackwardArgs back = backward_args(Dtype::f32);
  const Status status = backward(exec, back, {"naive", {}}, {});
  EXPECT_EQ(status.code(), Status::Code::skipped);
  EXPECT_NE(status.reason().find("logits"), std::string::npos);
  const auto refuses = [](auto wrong, const auto& change) {
    change(wrong);
    EXPECT_THROW(check(wrong), InputError);
  };
  refuses(args, [](auto& wrong) { wrong.weight.extent[1] = 9; });
  refuses(args, [](auto& wrong) { wrong.weight.extent[0] = 0; });
  refuses(args, [](auto& wrong) { wrong.statistics.extent[1] = 3; });
  refuses(args, [](auto& wrong) { wrong.loss.dtype = Dtype::f16; });
  refuses(args, [](auto& wrong) { wrong.logits = {nullptr, Dtype::f32, {4, 17}}; });
  refuses(back, [](auto& wrong) { wrong.dweight.dtype = Dtype::f16; });
  refuses(back, [](auto& wrong) { wrong.kept_logits = {nullptr, Dtype::f16, {4, 16}}; });
}

TEST(LinearCrossEntropyAuto, TakesStoredLogitsWhereThereAreNoKeptOnes) {
  const Host exec = serial_host();
  const auto variant = [&](const BackwardArgs& args) {
    return backward_variants<Host>().resolve(exec, args, {}).variant;
  };
  BackwardArgs args = backward_args(Dtype::bf16);
  args.logits = {nullptr, Dtype::bf16, {4, 16}};
  EXPECT_EQ(variant(args), "naive");
  args.kept_logits = {nullptr, Dtype::f32, {4, 16}};
  EXPECT_EQ(variant(args), "fused");
  args.logits = {};
  EXPECT_EQ(variant(args), "fused");
  args.kept_logits = {};
  EXPECT_EQ(variant(args), "fused");
  EXPECT_EQ(backward_variants<Host>().supports(exec, args, {"naive", {}}).code(),
            Status::Code::skipped);
}

RC_GTEST_PROP(LinearCrossEntropyProperty, FusedEqualsNaive, ()) {
  const auto shape =
      shape_of(*rc::gen::inRange<std::int64_t>(1, 30), *rc::gen::inRange<std::int64_t>(1, 80),
               *rc::gen::inRange<std::int64_t>(1, 900));
  const auto seed = *rc::gen::arbitrary<std::uint16_t>();
  const Kokkos::DefaultExecutionSpace exec;
  testing::for_each_pass<Description>([&]<class Pass>(Pass) {
    const Problem problem = make_problem<Pass>(shape, Dtype::f32, seed);
    const auto outputs_of = [&](const char* variant) {
      return testing::outputs_of<Description, Pass>(exec, problem, variant).value();
    };
    const HostValues fused = outputs_of("fused");
    const HostValues naive = outputs_of("naive");
    const auto expect_near = [&](const char* output, float limit) {
      const std::vector<float>& expected = naive.find(output)->second;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        RC_ASSERT(std::abs(fused.find(output)->second[i] - expected[i]) <=
                  limit * (Pass::backward ? 1 : 1 + std::abs(expected[i])));
      }
    };
    if constexpr (Pass::backward) {
      expect_near("dhidden", 2e-6F);
      expect_near("dweight", 5e-6F);
    } else {
      expect_near("loss", 1e-5F);
    }
  });
}

TEST(LinearCrossEntropyWork, CountsTheProducts) {
  EXPECT_EQ(forward_flops(forward_args(Dtype::f32)), 2 * 4 * 8 * 16);
  EXPECT_EQ(backward_flops(backward_args(Dtype::f32)), 4 * 4 * 8 * 16);
  EXPECT_EQ(forward_bytes(forward_args(Dtype::bf16)), 2 * (4 * 8 + 16 * 8) + 16 * 4);
}

/// A peer's result: the loss alone, of the inputs of the moment.
float loss_of(const bench::ForeignCase& foreign, std::int64_t tokens, std::int64_t hidden,
              std::int64_t vocab) {
  const auto input = [&](const char* name) {
    return *std::ranges::find(foreign.inputs, name, &bench::ForeignTensor::name);
  };
  const HostProblem p{.tokens = tokens,
                      .hidden_size = hidden,
                      .vocab = vocab,
                      .hidden = input("hidden").values,
                      .weight = input("weight").values,
                      .targets = input("targets").integers};
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    sum += reference_lse(p, t) - reference_logit(p, t, p.targets[static_cast<std::size_t>(t)]);
  }
  return static_cast<float>(sum / static_cast<double>(tokens));
}

TEST(LinearCrossEntropySweep, PeersAreComparedWithInputsThatHaveChanged) {
  const auto op = bench::make_tensor_operator(bench::data_of<Description>());
  bench::Point point;
  point.pass = "forward";
  point.backend = Backend::serial;
  for (const auto& [axis, value] : shape_of(5, 40, 60)) point.values[axis] = value;
  const auto made = op->make_case(point);
  const auto foreign = made->foreign();
  float before = 0;
  for (std::uint64_t round = 0; round < 4; ++round) {
    const std::vector<std::vector<float>> loss{{loss_of(*foreign, 5, 40, 60)}};
    EXPECT_NE(loss[0][0], before);
    before = loss[0][0];
    const Status status = foreign->verify(loss).status;
    EXPECT_TRUE(status.is_ok()) << "round " << round << ": " << status.reason();
    EXPECT_FALSE(made->change(round, round == 1).empty());
  }
}

}  // namespace
}  // namespace katt::linear_cross_entropy

namespace katt {
INSTANTIATE_TYPED_TEST_SUITE_P(LinearCrossEntropy, OperatorSuite, linear_cross_entropy::Cases);
}  // namespace katt
