#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/cross_entropy/cross_entropy_ref.hpp"
#include "tests/ops/matrix.hpp"
#include "tests/slope.hpp"

namespace katt::cross_entropy {
namespace {

using testing::Indices;
using testing::Matrix;

struct Problem {
  Dtype dtype = Dtype::f32;
  std::int64_t tokens = 0, vocab = 0;
  std::vector<float> logits;
  std::vector<std::int64_t> targets;

  HostProblem host() const { return {tokens, vocab, logits, targets}; }
};

Problem make_problem(std::int64_t tokens, std::int64_t vocab, Dtype dtype, std::uint64_t seed = 1,
                     float scale = 3.0F) {
  Problem p{dtype, tokens, vocab, testing::random_values(tokens * vocab, seed, dtype, scale), {}};
  for (std::int64_t t = 0; t < tokens; ++t) {
    p.targets.push_back(
        static_cast<std::int64_t>(testing::hash(seed + 1, static_cast<std::uint64_t>(t)) %
                                  static_cast<std::uint64_t>(vocab)));
  }
  return p;
}

struct Result {
  float loss = 0;
  std::vector<float> statistics, dlogits;
};

template <class Exec>
Result run(const Exec& exec, const Problem& p, const std::string& variant, std::int64_t gap = 0,
           bool in_place = false) {
  constexpr Backend backend = backend_of<Exec>();
  const Matrix logits(backend, p.dtype, p.tokens, p.vocab, gap, p.logits);
  const Matrix dlogits(backend, p.dtype, p.tokens, p.vocab, 2 * gap);
  const Matrix statistics(backend, Dtype::f32, p.tokens, 2);
  const Indices targets(backend, p.targets);
  const bench::Tensor<1> loss("loss", backend, Dtype::f32, {1});
  loss.poison();

  ForwardArgs args;
  args.logits = logits.ref();
  args.targets = targets.data();
  args.loss = loss.ref();
  args.statistics = statistics.ref();
  check(args);
  testing::run_variant(exec, forward_variants<Exec>(), args, {variant, {}});

  BackwardArgs back;
  back.logits = args.logits;
  back.targets = args.targets;
  back.statistics = args.statistics;
  back.dlogits = in_place ? logits.ref() : dlogits.ref();
  check(back);
  testing::run_variant(exec, backward_variants<Exec>(), back, {variant, {}});
  EXPECT_TRUE(dlogits.gaps_untouched() && logits.gaps_untouched());
  return {loss.download()[0], statistics.values(), in_place ? logits.values() : dlogits.values()};
}

void expect_reference(const Problem& p, const Result& result, const std::string& what) {
  const HostProblem host = p.host();
  double loss_error = 0;
  double scale = 1;
  // Unfused f32 can be exact by chance: allow four roundings at the scale of the gradients.
  double gradient_limit =
      4 * 0x1p-23 / static_cast<double>(std::max<std::int64_t>(1, reference_count(host)));
  std::vector<std::vector<double>> rows;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    rows.push_back(reference_dlogits(host, t));
    const UnfusedToken unfused = unfused_token(host, t, p.dtype);
    const std::int64_t target = p.targets[static_cast<std::size_t>(t)];
    const double lse = reference_lse(host, t);
    scale = std::max(scale, std::abs(lse));
    if (target != host.ignore_index) {
      const double exact = lse - p.logits[static_cast<std::size_t>(t * p.vocab + target)];
      loss_error = std::max(loss_error, std::abs(unfused.loss - exact));
    }
    for (std::size_t v = 0; v < rows.back().size(); ++v) {
      gradient_limit = std::max(gradient_limit, 2 * std::abs(unfused.dlogits[v] - rows.back()[v]));
    }
  }
  EXPECT_NEAR(result.loss, reference_loss(host), 2 * loss_error + 16 * 0x1p-23 * scale) << what;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto row = static_cast<std::size_t>(t);
    for (std::size_t v = 0; v < rows[row].size(); ++v) {
      ASSERT_NEAR(result.dlogits[row * rows[row].size() + v], rows[row][v], gradient_limit)
          << what << ": dlogits(" << t << ", " << v << ")";
    }
  }
}

TEST(CrossEntropyReference, GradientMatchesFiniteDifferences) {
  Problem p = make_problem(4, 7, Dtype::bf16);  // few digits, so that a step is exact in float
  p.targets[2] = default_ignore_index;
  const auto loss = [&] { return reference_loss(p.host()); };
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto gradient = reference_dlogits(p.host(), t);
    for (std::int64_t v = 0; v < p.vocab; ++v) {
      float& x = p.logits[static_cast<std::size_t>(t * p.vocab + v)];
      EXPECT_NEAR(test::slope(x, 0x1p-10F, loss), gradient[static_cast<std::size_t>(v)], 1e-6);
    }
  }
}

class CrossEntropy : public ::testing::TestWithParam<Dtype> {};

TEST_P(CrossEntropy, MatchesReferenceForEveryShapeStrideVariantAndBackend) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes{
      {1, 1}, {1, 2}, {3, 16}, {64, 1024}, {23, 501}, {5, 1025}, {2, 4099}};
  for (const auto& [tokens, vocab] : shapes) {
    Problem p = make_problem(tokens, vocab, GetParam());
    if (tokens > 2) p.targets[1] = default_ignore_index;
    for (const std::int64_t gap : {0, 3}) {
      testing::for_each_exec([&]<class Exec>(const Exec& exec) {
        for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
          expect_reference(p, run(exec, p, variant, gap),
                           variant + " (" + std::to_string(tokens) + ", " + std::to_string(vocab) +
                               ") gap " + std::to_string(gap));
        }
      });
    }
  }
}

TEST_P(CrossEntropy, HoldsForLargeLogits) {
  // ±10⁴, and rows whose two largest logits are equal: probabilities 1, ½ and 0.
  Problem p = make_problem(6, 300, GetParam());
  for (std::size_t i = 0; i < p.logits.size(); ++i) {
    p.logits[i] = round_to(p.dtype, i % 3 == 0 ? -1e4F : i % 3 == 1 ? 9e3F : 0.0F);
  }
  for (std::size_t t = 0; t < 6; ++t) {
    p.logits[t * 300 + 7] = round_to(p.dtype, 1e4F);
    if (t % 2 == 0) p.logits[t * 300 + 8] = p.logits[t * 300 + 7];
  }
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
      const Result result = run(exec, p, variant);
      EXPECT_TRUE(std::isfinite(result.loss)) << variant;
      expect_reference(p, result, variant);
    }
  });
}

TEST_P(CrossEntropy, NothingCountedGivesNanAndNoGradient) {
  Problem p = make_problem(5, 33, GetParam());
  p.targets.assign(5, default_ignore_index);
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
      const Result result = run(exec, p, variant);
      EXPECT_TRUE(std::isnan(result.loss)) << variant;
      for (const float value : result.dlogits) ASSERT_EQ(value, 0.0F) << variant;
    }
  });
}

TEST_P(CrossEntropy, AnIgnoredTokenIsNotRead) {
  Problem p = make_problem(3, 40, GetParam());
  p.targets[1] = default_ignore_index;
  std::fill_n(p.logits.begin() + 40, 40, std::numeric_limits<float>::quiet_NaN());
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
      const Result result = run(exec, p, variant);
      EXPECT_TRUE(std::isfinite(result.loss)) << variant;
      EXPECT_EQ(result.statistics[2], 0.0F) << variant;
      EXPECT_EQ(result.statistics[3], 0.0F) << variant;
      for (std::size_t v = 40; v < 80; ++v) ASSERT_EQ(result.dlogits[v], 0.0F) << variant;
    }
  });
}

TEST(CrossEntropyMean, OfManyTokensLosesNothing) {
  constexpr std::int64_t tokens = 300000;
  Problem p{Dtype::f32, tokens, 2, {}, {}};
  p.logits.assign(2 * tokens, 0.0F);
  p.targets.assign(tokens, 1);
  for (const char* variant : {"naive", "fused"}) {
    const Result result = run(Kokkos::DefaultExecutionSpace(), p, variant);
    EXPECT_FLOAT_EQ(result.loss, std::log(2.0F)) << variant;
  }
}

TEST_P(CrossEntropy, GradientInPlace) {
  const Problem p = make_problem(9, 130, GetParam());
  const Kokkos::DefaultExecutionSpace exec;
  EXPECT_EQ(run(exec, p, "fused", 0, true).dlogits, run(exec, p, "fused").dlogits);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CrossEntropy, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

#if defined(KOKKOS_ENABLE_OPENMP)
TEST(CrossEntropyThreads, SameBitsOnAnyNumberOfThreads) {
  const Problem p = make_problem(101, 777, Dtype::f32);
  const Result one = run(Kokkos::OpenMP(1), p, "fused");
  const Result two = run(Kokkos::OpenMP(2), p, "fused");
  EXPECT_EQ(one.loss, two.loss);
  EXPECT_EQ(one.statistics, two.statistics);
  EXPECT_EQ(one.dlogits, two.dlogits);
}
#endif

TEST(CrossEntropyTargets, OneOutOfRangeMakesTheLossNan) {
  for (const std::int64_t wrong : {std::int64_t{9}, std::int64_t{-1}}) {
    Problem p = make_problem(4, 9, Dtype::f32);
    p.targets[2] = wrong;
    for (const char* variant : {"naive", "fused"}) {
      EXPECT_TRUE(std::isnan(run(Kokkos::DefaultExecutionSpace(), p, variant).loss)) << variant;
    }
  }
}

TEST(CrossEntropyRefusal, NamesTheReason) {
  ForwardArgs args;
  args.logits = {nullptr, Dtype::f16, {4, 8}};
  args.loss = {nullptr, Dtype::f32, {1}};
  check(args);
  args.loss.dtype = Dtype::f16;
  EXPECT_THROW(check(args), InputError);
  BackwardArgs back;
  back.logits = args.logits;
  back.statistics = {nullptr, Dtype::f32, {4, 2}};
  back.dlogits = {nullptr, Dtype::f32, {4, 8}};
  EXPECT_THROW(check(back), InputError);
}

Problem arbitrary_problem() {
  return make_problem(*rc::gen::inRange<std::int64_t>(1, 20),
                      *rc::gen::inRange<std::int64_t>(1, 3000), Dtype::f32,
                      *rc::gen::arbitrary<std::uint16_t>());
}

RC_GTEST_PROP(CrossEntropyProperty, GradientsOfATokenSumToZero, ()) {
  const Problem p = arbitrary_problem();
  const Result result = run(Kokkos::DefaultExecutionSpace(), p, "fused");
  RC_ASSERT(result.loss >= -1e-6F);
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto row = result.dlogits.begin() + t * p.vocab;
    RC_ASSERT(std::abs(std::accumulate(row, row + p.vocab, 0.0)) < 1e-5);
  }
}

RC_GTEST_PROP(CrossEntropyProperty, AConstantAddedToTheLogitsChangesNothing, ()) {
  Problem p = arbitrary_problem();
  for (float& x : p.logits) x = std::round(x * 64.0F) / 64.0F;  // so that the sums below are exact
  const Result before = run(Kokkos::DefaultExecutionSpace(), p, "fused");
  const auto shift = static_cast<float>(*rc::gen::inRange(-4096, 4096));
  for (float& x : p.logits) x += shift;
  const Result after = run(Kokkos::DefaultExecutionSpace(), p, "fused");
  RC_ASSERT(before.loss == after.loss);
  RC_ASSERT(before.dlogits == after.dlogits);
}

TEST(CrossEntropyWork, CountsTrafficOnce) {
  ForwardArgs args;
  args.logits = {nullptr, Dtype::bf16, {4, 100}};
  args.loss = {nullptr, Dtype::f32, {1}};
  EXPECT_EQ(forward_bytes(args), 4 * 100 * 2 + 4 * 8 + 4);
  BackwardArgs back;
  back.logits = args.logits;
  back.statistics = {nullptr, Dtype::f32, {4, 2}};
  back.dlogits = {nullptr, Dtype::bf16, {4, 100}};
  EXPECT_EQ(backward_bytes(back), 2 * 4 * 100 * 2 + 4 * 16);
  EXPECT_EQ(forward_flops(args), 1600);
}

}  // namespace
}  // namespace katt::cross_entropy
