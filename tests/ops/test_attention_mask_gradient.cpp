#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "ops/attention/backward.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"
#include "tests/slope.hpp"

// The gradient of the mask on hosts, of every variant: against float64, against finite differences, and
// the same bits on any number of threads.
namespace katt::attention {
namespace {

template <class Exec>
Outputs run(const Exec& exec, const ProblemData& data, const std::string& variant,
            bool asks = true) {
  const HostProblem& p = data.shape;
  const bench::Tensor<4> dmask("dmask", backend_of<Exec>(), data.dtype,
                               {p.bias_batch, p.bias_heads, p.seq_q, p.seq_kv}, HeadLayout::bhsd,
                               5);
  dmask.poison();
  Outputs made =
      run_problem(data, backend_of<Exec>(), HeadLayout::bhsd, {}, [&](BackwardArgs args) {
        if (asks) args.dmask = dmask.ref();
        run_pass(exec, args, {variant, {}});
      });
  EXPECT_TRUE(dmask.gaps_are_nan()) << variant;
  made.dmask = dmask.download();
  return made;
}

/// Names of the variants of a host that take the problem.
std::vector<std::string> variants_of(const ProblemData& data) {
  std::vector<std::string> names;
  for (const Config& config : variants_of(backward_variants<Host>(), backward_shape_args(data))) {
    names.push_back(config.variant);
  }
  return names;
}

/// A random bias of so many entries and heads, whose gradient is asked for.
std::unique_ptr<ProblemData> problem_of(const Shape& shape, Dtype dtype, bool batched,
                                        bool of_heads) {
  auto data = make_problem(shape, dtype);
  HostProblem& p = data->shape;
  p.mask_gradient = true;
  p.bias_batch = batched ? p.batch : 1;
  p.bias_heads = of_heads ? p.heads : 1;
  data->bias = random_bias(p.bias_batch * p.bias_heads * p.seq_q * p.seq_kv, dtype);
  add_dout(*data);
  return data;
}

void expect_reference(const ProblemData& data, const std::string& what) {
  const Reference reference(data, true);
  ASSERT_EQ(reference.expected().size(), 4U);
  for (const std::string& variant : variants_of(data)) {
    const bench::Errors errors = reference.compare(run(Host(), data, variant));
    EXPECT_TRUE(errors.status.is_ok())
        << what << ", " << name_of(data.dtype) << ", " << variant << ": " << errors.status.reason();
  }
}

class AttentionMaskGradient : public ::testing::TestWithParam<Dtype> {};

// A power of two, a prime, length 1, more queries than keys, many heads of a K/V head, few tiles.
const std::vector<Shape> few_shapes{
    {1, 2, 2, 64, 64, 64}, {2, 4, 2, 67, 67, 40}, {2, 3, 1, 1, 131, 16}, {1, 2, 1, 1, 1, 8},
    {1, 2, 2, 97, 31, 72}, {2, 96, 1, 3, 20, 8},  {3, 2, 2, 70, 200, 8}, {5, 6, 2, 33, 65, 16}};

TEST_P(AttentionMaskGradient, MatchesReferenceForEveryShapeAndBroadcast) {
  for (const Shape& shape : few_shapes) {
    for (const int kind : {0, 1, 2, 3}) {
      const auto data = problem_of(shape, GetParam(), (kind & 1) != 0, (kind & 2) != 0);
      data->link();
      expect_reference(*data, describe(shape) + ", mask " + std::to_string(kind));
    }
  }
}

// Every mask of `masks`; where it has no bias, a random one is under it.
TEST_P(AttentionMaskGradient, MatchesReferenceForEveryMask) {
  for (const Shape& shape : {Shape{2, 4, 2, 67, 67, 40}, Shape{1, 2, 2, 97, 31, 72}}) {
    for (const MaskCase& mask : masks) {
      const auto data = problem_of(shape, GetParam(), false, true);
      const auto random = std::exchange(data->bias, {});
      mask.apply(*data);
      if (data->bias.empty()) {
        data->bias = random;
      } else if (mask.name.find("per batch") == std::string::npos) {
        data->shape.bias_heads = 1;
      }
      data->link();
      expect_reference(*data, describe(shape) + ", " + mask.name);
    }
  }
}

TEST_P(AttentionMaskGradient, HiddenScoresHaveNone) {
  const auto data = problem_of({2, 2, 1, 40, 70, 16}, GetParam(), true, false);
  HostProblem& p = data->shape;
  p.causal = true;
  const auto row = static_cast<std::ptrdiff_t>(p.seq_kv);
  std::fill_n(data->bias.begin(), row, -std::numeric_limits<float>::infinity());
  data->link();
  for (const std::string& variant : variants_of(*data)) {
    const Outputs g = run(Host(), *data, variant);
    for (std::int64_t i = 0; i < p.seq_q; ++i) {
      for (std::int64_t j = 0; j < p.seq_kv; ++j) {
        const auto at = static_cast<std::size_t>(i * p.seq_kv + j);
        if (i == 0 || j > i + p.seq_kv - p.seq_q || std::isinf(data->bias[at])) {
          ASSERT_EQ(g.dmask[at], 0.0F) << variant << " " << i << ", " << j;
        }
      }
    }
  }
}

// Values that differ little: Δ = dO · O is far larger than what it leaves of dP.
TEST_P(AttentionMaskGradient, HasNoRoundingOfTheOutput) {
  const auto data = problem_of({2, 4, 2, 67, 131, 64}, GetParam(), false, false);
  for (float& value : data->v) value = 4.0F + std::floor(8.0F * std::abs(value)) / 32.0F;
  for (float& value : data->dout) value = std::abs(value);
  data->link();
  const auto keys = static_cast<std::size_t>(data->shape.seq_kv);
  const double roundoff = std::ldexp(1.0, GetParam() == Dtype::bf16 ? -8 : -11);
  for (const std::string& variant : variants_of(*data)) {
    const Outputs g = run(Host(), *data, variant);
    for (std::int64_t i = 0; i < data->shape.seq_q; ++i) {
      const std::vector<double> exact = reference_mask_row(data->shape, {0, 0, i}).gradient;
      const auto [low, high] = std::minmax_element(exact.begin(), exact.end());
      const double largest = std::max(-*low, *high);
      for (std::size_t j = 0; j < keys; ++j) {
        ASSERT_NEAR(g.dmask[static_cast<std::size_t>(i) * keys + j], exact[j],
                    2 * roundoff * largest)
            << variant << " " << i << ", " << j;
      }
    }
  }
}

TEST_P(AttentionMaskGradient, LeavesTheOthersAsTheyAre) {
  const auto data = problem_of({2, 4, 2, 67, 131, 40}, GetParam(), false, true);
  data->link();
  for (const std::string& variant : variants_of(*data)) {
    const Outputs with = run(Host(), *data, variant);
    const Outputs without = run(Host(), *data, variant, false);
    EXPECT_EQ(with.dq, without.dq) << variant;
    EXPECT_EQ(with.dk, without.dk) << variant;
    EXPECT_EQ(with.dv, without.dv) << variant;
    for (const float value : without.dmask) ASSERT_TRUE(std::isnan(value)) << variant;
  }
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST_P(AttentionMaskGradient, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const Shape& shape : {Shape{3, 4, 2, 150, 170, 64}, Shape{7, 6, 2, 33, 65, 16}}) {
    for (const bool of_heads : {false, true}) {
      const auto data = problem_of(shape, GetParam(), false, of_heads);
      data->link();
      const Outputs one = run(Kokkos::OpenMP(1), *data, "flash");
      for (int repeat = 0; repeat < 3; ++repeat) {
        EXPECT_EQ(one.dmask, run(Kokkos::OpenMP(2), *data, "flash").dmask) << describe(shape);
      }
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionMaskGradient, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// f(mask) = Σ dout ∘ out; central differences through the reference forward pass.
TEST(AttentionMaskReference, AgreesWithFiniteDifferences) {
  for (const int kind : {0, 1, 2, 3}) {
    const auto data = problem_of({2, 2, 1, 5, 7, 8}, Dtype::f32, (kind & 1) != 0, (kind & 2) != 0);
    HostProblem& p = data->shape;
    p.causal = true;
    p.score.softcap = 1.5;
    data->link();
    const auto objective = [&] {
      double sum = 0;
      for (std::int64_t row = 0; row < p.batch * p.heads * p.seq_q; ++row) {
        const ReferenceRow made =
            reference_row(p, {row / p.seq_q / p.heads, row / p.seq_q % p.heads, row % p.seq_q});
        for (std::size_t c = 0; c < 8; ++c) {
          sum += made.out[c] * data->dout[static_cast<std::size_t>(row) * 8 + c];
        }
      }
      return sum;
    };
    const std::int64_t rows = p.bias_batch * p.bias_heads * p.seq_q;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::vector<double> exact =
          reference_mask_row(
              p, {row / p.seq_q / p.bias_heads, row / p.seq_q % p.bias_heads, row % p.seq_q})
              .gradient;
      for (std::size_t j = 0; j < 7; ++j) {
        float& value = data->bias[static_cast<std::size_t>(row) * 7 + j];
        if (std::isinf(value)) {
          EXPECT_EQ(exact[j], 0.0);
          continue;
        }
        EXPECT_NEAR(test::slope(value, 0x1p-10F, objective), exact[j], 1e-5)
            << kind << ": " << row << ", " << j;
      }
    }
  }
}

TEST(AttentionMaskGradientArgs, RefusesOneWithoutAMaskAndOfAnotherShape) {
  const auto data = problem_of({1, 2, 2, 16, 16, 8}, Dtype::f32, false, true);
  data->link();
  BackwardArgs args = backward_shape_args(*data);
  ASSERT_TRUE(args.dmask);
  EXPECT_NO_THROW(check(args));
  BackwardArgs other = args;
  other.mask.bias = {};
  EXPECT_THROW(check(other), InputError);
  other = args;
  other.dmask.extent[1] = 1;
  EXPECT_THROW(check(other), InputError);
  other = args;
  other.dmask.dtype = Dtype::bf16;
  EXPECT_THROW(check(other), InputError);
}

}  // namespace
}  // namespace katt::attention
