#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "memory/tracker.hpp"
#include "ops/linear_cross_entropy/bench/case.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_ref.hpp"
#include "tests/ops/matrix.hpp"

namespace katt::linear_cross_entropy {
namespace {

using testing::Indices;
using testing::Matrix;

struct Shape {
  std::int64_t tokens, hidden, vocab;
};

// Powers of two, primes, length 1, and vocabularies of several blocks with a ragged last one.
const std::vector<Shape> shapes{{1, 1, 1},     {1, 8, 2},     {5, 17, 31},
                                {32, 64, 256}, {3, 24, 9001}, {41, 13, 523}};

std::unique_ptr<ProblemData> make_problem(const Shape& s, Dtype dtype, std::uint64_t seed = 1,
                                          float scale = 0.3F) {
  auto data = std::make_unique<ProblemData>();
  data->dtype = dtype;
  data->shape.tokens = s.tokens;
  data->shape.hidden_size = s.hidden;
  data->shape.vocab = s.vocab;
  data->hidden = testing::random_values(s.tokens * s.hidden, seed, dtype);
  data->weight = testing::random_values(s.vocab * s.hidden, seed + 1, dtype, scale);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    data->targets.push_back(
        static_cast<std::int64_t>(testing::hash(seed + 2, static_cast<std::uint64_t>(t)) %
                                  static_cast<std::uint64_t>(s.vocab)));
  }
  if (s.tokens > 2) data->targets[1] = cross_entropy::default_ignore_index;
  data->link();
  return data;
}

struct Result {
  float loss = 0;
  std::vector<float> statistics, dhidden, dweight;
};

template <class Exec>
Result run(const Exec& exec, const ProblemData& data, const std::string& variant,
           std::int64_t gap = 0, bool keeps = false) {
  constexpr Backend backend = backend_of<Exec>();
  const HostProblem& p = data.shape;
  const Matrix hidden(backend, data.dtype, p.tokens, p.hidden_size, gap, data.hidden);
  const Matrix weight(backend, data.dtype, p.vocab, p.hidden_size, gap, data.weight);
  const Matrix logits(backend, data.dtype, p.tokens, p.vocab, gap);
  const Matrix kept(backend, Dtype::f32, p.tokens, p.vocab);
  const Matrix statistics(backend, Dtype::f32, p.tokens, 2);
  const Matrix dhidden(backend, data.dtype, p.tokens, p.hidden_size, 2 * gap);
  const Matrix dweight(backend, data.dtype, p.vocab, p.hidden_size, gap);
  const Indices targets(backend, data.targets);
  const bench::Tensor<1> loss("loss", backend, Dtype::f32, {1});
  loss.poison();

  ForwardArgs args;
  args.hidden = hidden.ref();
  args.weight = weight.ref();
  args.targets = targets.data();
  args.loss = loss.ref();
  args.statistics = statistics.ref();
  if (variant == "naive") args.logits = logits.ref();
  if (keeps) args.kept_logits = kept.ref();
  check(args);
  testing::run_variant(exec, forward_variants<Exec>(), args, {variant, {}});

  BackwardArgs back;
  back.hidden = args.hidden;
  back.weight = args.weight;
  back.targets = args.targets;
  back.statistics = statistics.ref();
  back.logits = args.logits;
  back.kept_logits = args.kept_logits;
  back.dhidden = dhidden.ref();
  back.dweight = dweight.ref();
  check(back);
  testing::run_variant(exec, backward_variants<Exec>(), back, {variant, {}});
  EXPECT_TRUE(dhidden.gaps_untouched() && dweight.gaps_untouched());
  return {loss.download()[0], statistics.values(), dhidden.values(), dweight.values()};
}

template <class Exec>
void expect_reference(const Exec& exec, const ProblemData& data, const std::string& what,
                      std::int64_t gap = 0) {
  const Reference reference(data);
  for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
    const Result result = run(exec, data, variant, gap);
    const bench::Errors forward = reference.forward(result.loss, result.statistics);
    EXPECT_TRUE(forward.status.is_ok())
        << what << ", " << variant << ": " << forward.status.reason();
    const bench::Errors backward =
        reference.backward(result.dhidden, result.dweight, result.statistics);
    EXPECT_TRUE(backward.status.is_ok())
        << what << ", " << variant << ": " << backward.status.reason();
  }
}

TEST(LinearCrossEntropyReference, GradientsMatchFiniteDifferences) {
  const auto data = make_problem({4, 5, 6}, Dtype::bf16);  // few digits, so that a step is exact
  const HostProblem& p = data->shape;
  std::vector<double> lse;
  for (std::int64_t t = 0; t < p.tokens; ++t) lse.push_back(reference_lse(p, t));
  const auto derivative = [&](float& value) {
    constexpr float step = 0x1p-10F;
    const float before = value;
    value = before + step;
    const double above = reference_loss(p);
    value = before - step;
    const double below = reference_loss(p);
    value = before;
    return (above - below) / (2 * step);
  };
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto gradient = reference_dhidden(p, t);
    for (std::int64_t h = 0; h < p.hidden_size; ++h) {
      const auto at = static_cast<std::size_t>(t * p.hidden_size + h);
      EXPECT_NEAR(derivative(data->hidden[at]), gradient[static_cast<std::size_t>(h)], 1e-6);
    }
  }
  for (std::int64_t v = 0; v < p.vocab; ++v) {
    const auto gradient = reference_dweight(p, v, lse);
    for (std::int64_t h = 0; h < p.hidden_size; ++h) {
      const auto at = static_cast<std::size_t>(v * p.hidden_size + h);
      EXPECT_NEAR(derivative(data->weight[at]), gradient[static_cast<std::size_t>(h)], 1e-6);
    }
  }
}

class LinearCrossEntropy : public ::testing::TestWithParam<Dtype> {};

TEST_P(LinearCrossEntropy, MatchesReferenceForEveryShapeStrideVariantAndBackend) {
  for (const Shape& s : shapes) {
    const auto data = make_problem(s, GetParam());
    const std::string what = "(" + std::to_string(s.tokens) + ", " + std::to_string(s.hidden) +
                             ", " + std::to_string(s.vocab) + ")";
    for (const std::int64_t gap : {0, 3}) {
      if (gap > 0 && s.vocab > 1000) continue;
      testing::for_each_exec([&](const auto& exec) { expect_reference(exec, *data, what, gap); });
    }
  }
}

TEST_P(LinearCrossEntropy, HoldsForLargeLogits) {
  const auto data = make_problem({6, 64, 300}, GetParam(), 3, 1000.0F);  // about ±10⁴
  for (const char* variant : {"naive", "fused"}) {
    const Result result = run(Kokkos::DefaultExecutionSpace(), *data, variant);
    EXPECT_TRUE(std::isfinite(result.loss)) << variant;
    for (const float value : result.dhidden) ASSERT_TRUE(std::isfinite(value)) << variant;
    for (const float value : result.dweight) ASSERT_TRUE(std::isfinite(value)) << variant;
  }
}

TEST_P(LinearCrossEntropy, NothingCountedGivesNanAndNoGradient) {
  const auto data = make_problem({5, 16, 33}, GetParam());
  data->targets.assign(5, cross_entropy::default_ignore_index);
  data->link();
  for (const char* variant : {"naive", "fused"}) {
    const Result result = run(Kokkos::DefaultExecutionSpace(), *data, variant);
    EXPECT_TRUE(std::isnan(result.loss)) << variant;
    for (const float value : result.dhidden) ASSERT_EQ(value, 0.0F) << variant;
    for (const float value : result.dweight) ASSERT_EQ(value, 0.0F) << variant;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LinearCrossEntropy, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

#if defined(KOKKOS_ENABLE_OPENMP)
TEST(LinearCrossEntropyThreads, SameBitsOnAnyNumberOfThreads) {
  const auto data = make_problem({70, 96, 1500}, Dtype::bf16);
  for (const char* variant : {"naive", "fused"}) {
    const Result one = run(Kokkos::OpenMP(1), *data, variant);
    const Result two = run(Kokkos::OpenMP(2), *data, variant);
    EXPECT_EQ(one.loss, two.loss) << variant;
    EXPECT_EQ(one.dhidden, two.dhidden) << variant;
    EXPECT_EQ(one.dweight, two.dweight) << variant;
  }
}
#endif

TEST_P(LinearCrossEntropy, KeptLogitsGiveTheSameBits) {
  const Kokkos::DefaultExecutionSpace exec;
  for (const Shape& shape : shapes) {
    const auto data = make_problem(shape, GetParam());
    const Result again = run(exec, *data, "fused");
    const Result kept = run(exec, *data, "fused", 0, true);
    EXPECT_EQ(again.loss, kept.loss);
    EXPECT_EQ(again.statistics, kept.statistics);
    EXPECT_EQ(again.dhidden, kept.dhidden);
    EXPECT_EQ(again.dweight, kept.dweight);
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
  using Exec = Kokkos::DefaultExecutionSpace;
  const Exec exec;
  const auto bytes = [&](std::int64_t vocab, Dtype dtype, bool backward) {
    HostProblem p;
    p.tokens = 2048;
    p.hidden_size = 512;
    p.vocab = vocab;
    return backward ? backward_variants<Exec>().workspace_bytes(exec, backward_shape(p, dtype),
                                                                {"fused", {}})
                    : forward_variants<Exec>().workspace_bytes(exec, forward_shape(p, dtype),
                                                               {"fused", {}});
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

TEST(LinearCrossEntropyRefusal, NamesTheReason) {
  const Host exec = serial_host();
  const auto data = make_problem({4, 8, 16}, Dtype::f32);
  const DeviceProblem problem(*data, Backend::serial);
  const ForwardOutput forward_output(data->shape, Dtype::f32, Backend::serial, false);
  BackwardOutput output{{"dhidden", Backend::serial, Dtype::f32, {4, 8}},
                        {"dweight", Backend::serial, Dtype::f32, {16, 8}},
                        std::nullopt};
  const ForwardArgs args = link(problem, forward_output);
  const BackwardArgs back = link(problem, forward_output, output);
  const Status status = backward(exec, back, {"naive", {}}, {});
  EXPECT_EQ(status.code(), Status::Code::skipped);
  EXPECT_NE(status.reason().find("logits"), std::string::npos);
  EXPECT_THROW((void)forward(exec, args, {"fused", {}}, {}), InputError);  // no workspace
  EXPECT_THROW((void)forward(exec, args, {"fast", {}}, {}), InputError);
  ForwardArgs wrong = args;
  wrong.weight.extent[1] = 9;
  EXPECT_THROW(check(wrong), InputError);
  BackwardArgs wrong_back = back;
  wrong_back.dweight.dtype = Dtype::f16;
  EXPECT_THROW(check(wrong_back), InputError);
}

TEST(LinearCrossEntropyAuto, TakesStoredLogitsWhereThereAreNoKeptOnes) {
  const Host exec = serial_host();
  HostProblem p;
  p.tokens = 4;
  p.hidden_size = 8;
  p.vocab = 16;
  const auto variant = [&](const BackwardArgs& args) {
    return backward_variants<Host>().resolve(exec, args, {}).variant;
  };
  BackwardArgs args = backward_shape(p, Dtype::bf16);
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
  const Shape shape{*rc::gen::inRange<std::int64_t>(1, 30), *rc::gen::inRange<std::int64_t>(1, 80),
                    *rc::gen::inRange<std::int64_t>(1, 900)};
  const auto data = make_problem(shape, Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  const Kokkos::DefaultExecutionSpace exec;
  const Result fused = run(exec, *data, "fused");
  const Result naive = run(exec, *data, "naive");
  RC_ASSERT(std::abs(fused.loss - naive.loss) <= 1e-5F * (1 + std::abs(naive.loss)));
  for (std::size_t i = 0; i < fused.dhidden.size(); ++i) {
    RC_ASSERT(std::abs(fused.dhidden[i] - naive.dhidden[i]) <= 2e-6F);
  }
  for (std::size_t i = 0; i < fused.dweight.size(); ++i) {
    RC_ASSERT(std::abs(fused.dweight[i] - naive.dweight[i]) <= 5e-6F);
  }
}

TEST(LinearCrossEntropyWork, CountsTheProducts) {
  HostProblem p;
  p.tokens = 2;
  p.hidden_size = 3;
  p.vocab = 5;
  EXPECT_EQ(forward_flops(forward_shape(p, Dtype::f32)), 60);
  EXPECT_EQ(backward_flops(backward_shape(p, Dtype::f32)), 120);
  EXPECT_EQ(forward_bytes(forward_shape(p, Dtype::bf16)), 2 * (6 + 15) + 32);
}

}  // namespace
}  // namespace katt::linear_cross_entropy
