#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "op/reference/expected.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/embedding/embedding_ref.hpp"
#include "tests/ops/matrix.hpp"

namespace katt::embedding {
namespace {

using testing::Indices;
using testing::Matrix;

struct Problem {
  Dtype dtype = Dtype::f32;
  std::int64_t tokens = 0, vocab = 0, hidden = 0;
  std::vector<float> weight, dout;
  std::vector<std::int64_t> ids;
};

/// Half of the tokens share the id 0, which exercises long sums; many ids have no token.
Problem make_problem(std::int64_t tokens, std::int64_t vocab, std::int64_t hidden, Dtype dtype,
                     std::uint64_t seed = 1) {
  Problem p{dtype,
            tokens,
            vocab,
            hidden,
            testing::random_values(vocab * hidden, seed, dtype),
            testing::random_values(tokens * hidden, seed + 1, dtype),
            {}};
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::uint64_t h = testing::hash(seed + 2, static_cast<std::uint64_t>(t));
    p.ids.push_back(
        h % 2 == 0 ? 0 : static_cast<std::int64_t>(h / 2 % static_cast<std::uint64_t>(vocab)));
  }
  return p;
}

struct Result {
  std::vector<float> out, dweight;
};

template <class Exec>
Result run(const Exec& exec, const Problem& p, const std::string& variant, std::int64_t gap = 0) {
  constexpr Backend backend = backend_of<Exec>();
  const Matrix weight(backend, p.dtype, p.vocab, p.hidden, gap, p.weight);
  const Matrix dout(backend, p.dtype, p.tokens, p.hidden, gap, p.dout);
  const Matrix out(backend, p.dtype, p.tokens, p.hidden, 2 * gap);
  const Matrix dweight(backend, p.dtype, p.vocab, p.hidden, gap);
  const Indices ids(backend, p.ids);
  ForwardArgs args;
  args.weight = weight.ref();
  args.ids = ids.data();
  args.out = out.ref();
  check(args);
  testing::run_variant(exec, forward_variants<Exec>(), args, {variant, {}});
  BackwardArgs back;
  back.dout = dout.ref();
  back.ids = ids.data();
  back.dweight = dweight.ref();
  check(back);
  testing::run_variant(exec, backward_variants<Exec>(), back, {variant, {}});
  EXPECT_TRUE(out.gaps_untouched() && dweight.gaps_untouched());
  return {out.values(), dweight.values()};
}

void expect_reference(const Problem& p, const Result& result, const std::string& what) {
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const std::int64_t id = p.ids[static_cast<std::size_t>(t)];
    for (std::int64_t c = 0; c < p.hidden; ++c) {
      ASSERT_EQ(result.out[static_cast<std::size_t>(t * p.hidden + c)],
                p.weight[static_cast<std::size_t>(id * p.hidden + c)])
          << what << ": out(" << t << ", " << c << ")";
    }
  }
  for (std::int64_t v = 0; v < p.vocab; ++v) {
    const auto exact = reference_dweight(p.dout, p.ids, p.hidden, v);
    const auto unfused = unfused_dweight(p.dout, p.ids, p.hidden, v, p.dtype);
    testing::ErrorRule rule(p.dtype);
    for (std::size_t c = 0; c < exact.size(); ++c) rule.add(exact[c], unfused[c]);
    for (std::size_t c = 0; c < exact.size(); ++c) {
      ASSERT_NEAR(result.dweight[static_cast<std::size_t>(v * p.hidden) + c], exact[c],
                  rule.limit())
          << what << ": dweight(" << v << ", " << c << ")";
    }
  }
}

TEST(EmbeddingReference, GradientMatchesFiniteDifferences) {
  // L = Σ dout · out is linear in the table: its derivative by any step is the gradient.
  Problem p = make_problem(9, 4, 3, Dtype::f32);
  const auto objective = [&] {
    double sum = 0;
    for (std::size_t t = 0; t < 9; ++t) {
      for (std::size_t c = 0; c < 3; ++c) {
        sum += static_cast<double>(p.dout[t * 3 + c]) *
               p.weight[static_cast<std::size_t>(p.ids[t]) * 3 + c];
      }
    }
    return sum;
  };
  for (std::int64_t v = 0; v < 4; ++v) {
    const auto gradient = reference_dweight(p.dout, p.ids, 3, v);
    for (std::size_t c = 0; c < 3; ++c) {
      float& w = p.weight[static_cast<std::size_t>(v) * 3 + c];
      const double before = objective();
      const float old = w;
      w += 0.5F;
      EXPECT_NEAR((objective() - before) / (static_cast<double>(w) - old), gradient[c], 1e-9);
      w = old;
    }
  }
}

class Embedding : public ::testing::TestWithParam<Dtype> {};

TEST_P(Embedding, MatchesReferenceForEveryShapeStrideVariantAndBackend) {
  struct Shape {
    std::int64_t tokens, vocab, hidden;
  };
  for (const Shape& s : {Shape{1, 1, 1}, Shape{1, 5, 16}, Shape{37, 11, 129}, Shape{64, 128, 256},
                         Shape{301, 97, 131}, Shape{20, 9000, 7}}) {
    const Problem p = make_problem(s.tokens, s.vocab, s.hidden, GetParam());
    for (const std::int64_t gap : {0, 3}) {
      testing::for_each_exec([&]<class Exec>(const Exec& exec) {
        for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
          expect_reference(p, run(exec, p, variant, gap), variant);
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Embedding, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(EmbeddingIds, OneOutOfRangeGivesNanAndNoGradient) {
  Problem p = make_problem(6, 8, 20, Dtype::f32);
  p.ids = {1, 8, 2, -1, 1, 3};
  for (const char* variant : {"naive", "rows"}) {
    const Result result = run(Kokkos::DefaultExecutionSpace(), p, variant);
    for (std::size_t c = 0; c < 20; ++c) {
      EXPECT_TRUE(std::isnan(result.out[20 + c]) && std::isnan(result.out[60 + c])) << variant;
      EXPECT_EQ(result.out[c], p.weight[20 + c]) << variant;
      EXPECT_EQ(result.dweight[20 + c], p.dout[c] + p.dout[80 + c]) << variant;
      EXPECT_EQ(result.dweight[c], 0.0F) << variant;
    }
  }
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST(EmbeddingThreads, SameBitsOnAnyNumberOfThreads) {
  const Problem p = make_problem(500, 70, 200, Dtype::f32);
  for (const char* variant : {"naive", "rows"}) {
    EXPECT_EQ(run(Kokkos::OpenMP(1), p, variant).dweight,
              run(Kokkos::OpenMP(2), p, variant).dweight);
  }
}
#endif

TEST(EmbeddingRefusal, NamesTheReason) {
  ForwardArgs args;
  args.weight = {nullptr, Dtype::f32, {8, 16}};
  args.out = {nullptr, Dtype::f32, {3, 17}};
  EXPECT_THROW(check(args), InputError);
  BackwardArgs back;
  back.dout = {nullptr, Dtype::f32, {3, 16}};
  back.dweight = {nullptr, Dtype::f16, {8, 16}};
  EXPECT_THROW(check(back), InputError);
  back.dweight.dtype = Dtype::f32;
  EXPECT_THROW((void)backward(serial_host(), back, {"rows", {}}, {}),
               InputError);  // no workspace
  EXPECT_EQ(backward_bytes(back), 4 * (48 + 128) + 24);
}

RC_GTEST_PROP(EmbeddingProperty, GradientKeepsTheSumOfEveryColumn, ()) {
  const Problem p = make_problem(
      *rc::gen::inRange<std::int64_t>(1, 200), *rc::gen::inRange<std::int64_t>(1, 90),
      *rc::gen::inRange<std::int64_t>(1, 300), Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  const Result result = run(Kokkos::DefaultExecutionSpace(), p, "rows");
  for (std::int64_t c = 0; c < p.hidden; ++c) {
    double before = 0;
    double after = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t)
      before += p.dout[static_cast<std::size_t>(t * p.hidden + c)];
    for (std::int64_t v = 0; v < p.vocab; ++v)
      after += result.dweight[static_cast<std::size_t>(v * p.hidden + c)];
    RC_ASSERT(std::abs(before - after) < 1e-3);
  }
}

}  // namespace
}  // namespace katt::embedding
