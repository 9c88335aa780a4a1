#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/softmax/softmax.hpp"
#include "ops/softmax/softmax_ref.hpp"
#include "testing/expected.hpp"
#include "tests/ops/matrix.hpp"

namespace katt::softmax {
namespace {

using testing::Matrix;

struct Problem {
  Dtype dtype = Dtype::f32;
  std::int64_t tokens = 0, vocab = 0;
  std::vector<float> x, dout;

  std::span<const float> row(const std::vector<float>& values, std::int64_t t) const {
    return std::span<const float>(values).subspan(static_cast<std::size_t>(t * vocab),
                                                  static_cast<std::size_t>(vocab));
  }
};

Problem make_problem(std::int64_t tokens, std::int64_t vocab, Dtype dtype, std::uint64_t seed = 1,
                     float scale = 3.0F) {
  return {dtype, tokens, vocab, testing::random_values(tokens * vocab, seed, dtype, scale),
          testing::random_values(tokens * vocab, seed + 1, dtype)};
}

struct Result {
  std::vector<float> out, dx;
};

template <class Exec>
Result run(const Exec& exec, const Problem& p, const std::string& variant, std::int64_t gap = 0,
           bool in_place = false) {
  constexpr Backend backend = backend_of<Exec>();
  const Matrix x(backend, p.dtype, p.tokens, p.vocab, gap, p.x);
  const Matrix dout(backend, p.dtype, p.tokens, p.vocab, gap, p.dout);
  const Matrix out(backend, p.dtype, p.tokens, p.vocab, 2 * gap);
  const Matrix dx(backend, p.dtype, p.tokens, p.vocab, gap);
  const Matrix& gradient = in_place ? dout : dx;
  const BackwardArgs back{x.ref(), dout.ref(), gradient.ref()};
  check(back);
  testing::run_variant(exec, backward_variants<Exec>(), back, {variant, {}});
  const Matrix& result = in_place ? x : out;
  const ForwardArgs args{x.ref(), result.ref()};
  check(args);
  testing::run_variant(exec, forward_variants<Exec>(), args, {variant, {}});
  EXPECT_TRUE(result.gaps_untouched() && gradient.gaps_untouched());
  return {result.values(), gradient.values()};
}

/// Rows by testing::ErrorRule, and four roundings of f32 at 1, of which the rows are parts.
void expect_rows(const Problem& p, const std::vector<float>& got, bool backward,
                 const std::string& what) {
  std::vector<std::vector<double>> rows;
  testing::ErrorRule rule(p.dtype);
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto x = p.row(p.x, t);
    const auto dout = p.row(p.dout, t);
    rows.push_back(backward ? reference_gradient(x, dout) : reference_row(x));
    const auto unfused = backward ? unfused_gradient(x, dout, p.dtype) : unfused_row(x, p.dtype);
    for (std::size_t c = 0; c < unfused.size(); ++c) rule.add(rows.back()[c], unfused[c]);
  }
  const double limit = rule.limit() + 4 * 0x1p-23;
  for (std::size_t t = 0; t < rows.size(); ++t) {
    for (std::size_t c = 0; c < rows[t].size(); ++c) {
      ASSERT_NEAR(got[t * rows[t].size() + c], rows[t][c], limit)
          << what << (backward ? ": dx(" : ": out(") << t << ", " << c << ")";
    }
  }
}

TEST(SoftmaxReference, GradientMatchesFiniteDifferences) {
  Problem p = make_problem(1, 6, Dtype::bf16);  // few digits, so that a step is exact in float
  const auto gradient = reference_gradient(p.x, p.dout);
  const auto objective = [&] {
    const auto out = reference_row(p.x);
    double sum = 0;
    for (std::size_t c = 0; c < out.size(); ++c) sum += out[c] * p.dout[c];
    return sum;
  };
  for (std::size_t c = 0; c < 6; ++c) {
    constexpr float step = 0x1p-10F;
    const float before = p.x[c];
    p.x[c] = before + step;
    const double above = objective();
    p.x[c] = before - step;
    const double below = objective();
    p.x[c] = before;
    EXPECT_NEAR((above - below) / (2 * step), gradient[c], 1e-6);
  }
}

class Softmax : public ::testing::TestWithParam<Dtype> {};

TEST_P(Softmax, MatchesReferenceForEveryShapeStrideVariantAndBackend) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes{
      {1, 1}, {1, 2}, {3, 16}, {64, 1024}, {23, 501}, {5, 1025}, {2, 4099}};
  for (const auto& [tokens, vocab] : shapes) {
    const Problem p = make_problem(tokens, vocab, GetParam());
    const std::string shape = "(" + std::to_string(tokens) + ", " + std::to_string(vocab) + ") ";
    for (const std::int64_t gap : {0, 3}) {
      testing::for_each_exec([&]<class Exec>(const Exec& exec) {
        for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
          const Result result = run(exec, p, variant, gap);
          expect_rows(p, result.out, false, shape + variant);
          expect_rows(p, result.dx, true, shape + variant);
        }
      });
    }
  }
}

TEST_P(Softmax, HoldsForLargeValues) {
  Problem p = make_problem(6, 300, GetParam(), 5, 3000.0F);  // about ±10⁴
  for (std::size_t t = 0; t < 6; ++t) {  // two equal largest values in every other row
    p.x[t * 300 + 7] = round_to(p.dtype, 1.2e4F);
    if (t % 2 == 0) p.x[t * 300 + 8] = p.x[t * 300 + 7];
  }
  for (const char* variant : {"naive", "fused"}) {
    const Result result = run(Kokkos::DefaultExecutionSpace(), p, variant);
    expect_rows(p, result.out, false, variant);
    expect_rows(p, result.dx, true, variant);
  }
}

TEST_P(Softmax, InPlace) {
  const Problem p = make_problem(9, 130, GetParam());
  const Kokkos::DefaultExecutionSpace exec;
  const Result apart = run(exec, p, "fused");
  const Result in_place = run(exec, p, "fused", 0, true);
  EXPECT_EQ(in_place.out, apart.out);
  EXPECT_EQ(in_place.dx, apart.dx);
}

TEST_P(Softmax, MinusInfinityHasNoProbabilityAndNanSpreads) {
  Problem p = make_problem(2, 40, GetParam());
  p.x[3] = -std::numeric_limits<float>::infinity();
  p.x[40 + 5] = std::numeric_limits<float>::quiet_NaN();
  for (const char* variant : {"naive", "fused"}) {
    const Result result = run(Kokkos::DefaultExecutionSpace(), p, variant);
    EXPECT_EQ(result.out[3], 0.0F) << variant;
    EXPECT_TRUE(std::isfinite(result.out[4])) << variant;
    EXPECT_TRUE(std::isnan(result.out[40])) << variant;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Softmax, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

#if defined(KOKKOS_ENABLE_OPENMP)
TEST(SoftmaxThreads, SameBitsOnAnyNumberOfThreads) {
  const Problem p = make_problem(101, 777, Dtype::f32);
  const Result one = run(Kokkos::OpenMP(1), p, "fused");
  const Result two = run(Kokkos::OpenMP(2), p, "fused");
  EXPECT_EQ(one.out, two.out);
  EXPECT_EQ(one.dx, two.dx);
}
#endif

TEST(SoftmaxRefusal, NamesTheReason) {
  const ForwardArgs args{{nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f16, {4, 8}}};
  EXPECT_THROW(check(args), InputError);
  const BackwardArgs back{
      {nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f32, {4, 7}}};
  EXPECT_THROW(check(back), InputError);
  const ForwardArgs good{{nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f32, {4, 8}}};
  EXPECT_THROW((void)forward(serial_host(), good, {"naive", {}}, {}), InputError);
  EXPECT_EQ(forward(serial_host(), good, {"fused", {8, 8}}, {}).code(), Status::Code::skipped);
}

RC_GTEST_PROP(SoftmaxProperty, RowsSumToOneAndGradientsToZero, ()) {
  const Problem p =
      make_problem(*rc::gen::inRange<std::int64_t>(1, 20), *rc::gen::inRange<std::int64_t>(1, 3000),
                   Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  const Result result = run(Kokkos::DefaultExecutionSpace(), p, "fused");
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    double sum = 0;
    double gradients = 0;
    for (std::int64_t c = 0; c < p.vocab; ++c) {
      sum += result.out[static_cast<std::size_t>(t * p.vocab + c)];
      gradients += result.dx[static_cast<std::size_t>(t * p.vocab + c)];
    }
    RC_ASSERT(std::abs(sum - 1) < 1e-5);
    RC_ASSERT(std::abs(gradients) < 1e-5);
  }
}

RC_GTEST_PROP(SoftmaxProperty, AConstantAddedToARowChangesNothing, ()) {
  Problem p =
      make_problem(*rc::gen::inRange<std::int64_t>(1, 5), *rc::gen::inRange<std::int64_t>(1, 2000),
                   Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  for (float& x : p.x) x = std::round(x * 64.0F) / 64.0F;  // so that the sums below are exact
  const Result before = run(Kokkos::DefaultExecutionSpace(), p, "fused");
  const auto shift = static_cast<float>(*rc::gen::inRange(-4096, 4096));
  for (float& x : p.x) x += shift;
  RC_ASSERT(run(Kokkos::DefaultExecutionSpace(), p, "fused").out == before.out);
}

}  // namespace
}  // namespace katt::softmax
