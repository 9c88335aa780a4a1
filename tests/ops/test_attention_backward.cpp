#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "ops/attention/backward.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"
#include "tests/slope.hpp"

namespace katt::attention {
namespace {

/// Every variant with every tile that takes the problem; naive comes first.
template <class Exec>
std::vector<Config> backward_configs(const ProblemData& data) {
  return configs_of(backward_variants<Exec>(), backward_shape_args(data));
}

/// Every variant that takes the problem, with its default tile.
template <class Exec>
std::vector<Config> all_variants(const ProblemData& data) {
  return variants_of(backward_variants<Exec>(), backward_shape_args(data));
}

template <class Exec>
void expect_reference(const ProblemData& data, const std::string& what,
                      const std::vector<Config>& configs, HeadLayout layout = HeadLayout::bhsd) {
  const Reference reference(data, true);
  for (const Config& config : configs) {
    const bench::Errors errors = reference.compare(run_backward(Exec(), data, config, layout));
    EXPECT_TRUE(errors.status.is_ok()) << what << ", " << name_of(data.dtype) << ", "
                                       << describe(config) << ": " << errors.status.reason();
  }
}

class AttentionBackward : public ::testing::TestWithParam<Dtype> {};

TEST_P(AttentionBackward, MatchesReferenceForEveryShapeAndMask) {
  using Exec = Kokkos::DefaultExecutionSpace;
  std::set<std::string> missing{"naive", "flash"};  // a variant that refuses everything fails
  if (is_host_v<Exec> && GetParam() == Dtype::bf16) missing.merge(panels_of_this_machine());
  for (const auto& [shape, mask] : with_masks(shapes)) {
    const auto data = make_problem(shape, GetParam(), mask);
    add_dout(*data);
    const std::vector<Config> configs = all_variants<Exec>(*data);
    for (const Config& config : configs) missing.erase(config.variant);
    expect_reference<Exec>(*data, describe(shape) + ", " + mask.name, configs);
  }
  for (const std::string& variant : missing) ADD_FAILURE() << variant << " refuses every problem";
}

TEST_P(AttentionBackward, MatchesReferenceForEveryTileAndStorage) {
  const Shape large{2, 4, 2, 150, 170, 40};
  const Shape small{2, 2, 1, 70, 150, 40};
  auto data = make_problem(test::device_is_emulated() ? small : large, GetParam());
  data->shape.causal = true;
  add_dout(*data);
  using Exec = Kokkos::DefaultExecutionSpace;
  expect_reference<Exec>(*data, "bshd", backward_configs<Exec>(*data), HeadLayout::bshd);
}

TEST_P(AttentionBackward, SerialMatchesReference) {
  auto data = make_problem(shapes[1], GetParam());
  add_dout(*data);
  expect_reference<Host>(*data, "serial", all_variants<Host>(*data));
}

TEST_P(AttentionBackward, NaiveSaysWhatMultiplies) {
  using Exec = Kokkos::DefaultHostExecutionSpace;
  const auto data = make_problem({1, 2, 2, 40, 70, 64}, GetParam());
  const BackwardArgs args = backward_shape_args(*data);
  const std::string engine = backward_variants<Exec>().find("naive").engine(Exec(), args, {});
  EXPECT_EQ(engine == "blas", GetParam() == Dtype::f32) << engine;
  EXPECT_NE(engine, "");
}

// Its probability is 1 whatever its score is: out is the value, and dP − Δ cancels.
TEST_P(AttentionBackward, OneVisibleKeyGivesNoGradientOfScores) {
  for (const std::int64_t head_dim : {8, 72, 128}) {
    auto data = make_problem({2, 4, 2, 37, 37, head_dim}, GetParam());
    data->shape.causal = true;
    data->shape.window_left = 0;
    add_dout(*data);
    for (const Config& config : backward_configs<Kokkos::DefaultExecutionSpace>(*data)) {
      // Tensor cores and AMX add in an order of their own; naive keeps no exact probability.
      if (config.variant != "flash" && config.variant != "flash_avx512_bf16") continue;
      const Outputs g = run_backward(Kokkos::DefaultExecutionSpace(), *data, config);
      const float limit = GetParam() == Dtype::f32 ? 2e-6F : 0.0F;  // f32: out is off by a rounding
      for (const auto* gradient : {&g.dq, &g.dk}) {
        for (const float value : *gradient) ASSERT_LE(std::abs(value), limit) << describe(config);
      }
    }
  }
}

TEST_P(AttentionBackward, HoldsForLargeScores) {
  auto data = make_problem({1, 2, 2, 40, 70, 64}, GetParam(), 3, 40.0F);
  data->shape.scale = 1.0;
  add_dout(*data);
  for (const Config& config : backward_configs<Kokkos::DefaultExecutionSpace>(*data)) {
    const Outputs g = run_backward(Kokkos::DefaultExecutionSpace(), *data, config);
    for (const auto* gradient : {&g.dq, &g.dk, &g.dv}) {
      for (const float value : *gradient) ASSERT_FALSE(std::isnan(value)) << config.variant;
    }
  }
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST_P(AttentionBackward, FlashGivesTheSameBitsOnAnyNumberOfThreadsAndEveryRun) {
  auto data = make_problem({1, 4, 2, 150, 170, 64}, GetParam());
  add_dout(*data);
  for (const Config& config : all_variants<Kokkos::OpenMP>(*data)) {
    if (config.variant == "naive") continue;
    const Outputs one = run_backward(Kokkos::OpenMP(1), *data, config);
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Outputs all = run_backward(Kokkos::OpenMP(), *data, config);
      EXPECT_EQ(one.dq, all.dq) << config.variant;
      EXPECT_EQ(one.dk, all.dk) << config.variant;
      EXPECT_EQ(one.dv, all.dv) << config.variant;
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionBackward, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(AttentionReference, GradientsAgreeWithFiniteDifferences) {
  // f(q, k, v) = Σ dout ∘ out
  for (const bool capped : {false, true}) {
    auto data = make_problem({1, 2, 1, 5, 7, 8}, Dtype::f32);
    data->shape.causal = true;
    data->shape.score.softcap = capped ? 1.5 : 0.0;
    add_dout(*data);
    const ReferenceGradients exact = reference_gradients(data->shape, 0, 0);
    const auto objective = [&] {
      double sum = 0;
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t i = 0; i < 5; ++i) {
          const ReferenceRow row = reference_row(data->shape, {0, h, i});
          for (std::size_t c = 0; c < 8; ++c) {
            sum += row.out[c] * data->dout[static_cast<std::size_t>(h * 5 + i) * 8 + c];
          }
        }
      }
      return sum;
    };
    const auto check_tensor = [&](const char* name, std::vector<float>& tensor,
                                  const std::vector<double>& gradient) {
      for (std::size_t i = 0; i < tensor.size(); ++i) {
        EXPECT_NEAR(test::slope(tensor[i], 0x1p-10F, objective), gradient[i], 1e-5)
            << name << " " << i;
      }
    };
    check_tensor("dq", data->q, exact.dq);
    check_tensor("dk", data->k, exact.dk);
    check_tensor("dv", data->v, exact.dv);
  }
}

RC_GTEST_PROP(AttentionBackwardProperty, EveryVariantMatchesReferenceAtAnySizeOfScores, ()) {
  using Exec = Kokkos::DefaultExecutionSpace;
  // The yardstick is the largest of the unfused errors: of a few rows it may be small by chance.
  const auto data = arbitrary_problem(24);
  add_dout(*data);
  const Reference reference(*data, true);
  // naive's lse is that of products which the library sums in another order (in 16 bits of rounded
  // scores too), and fits its own gradients alone: those divide P by its sum.
  const bool naive_lse = *rc::gen::arbitrary<bool>();
  for (const Config& config : one_of_each_variant(backward_configs<Exec>(*data))) {
    const std::string forward = naive_lse && config.variant == "naive" ? "naive" : "auto";
    const Outputs made = run_backward(Exec(), *data, config, HeadLayout::bhsd, {forward, {}});
    const Status status = reference.compare(made).status;
    if (!status.is_ok()) {
      RC_FAIL(describe(config) + " after " + forward + ": " + status.reason());
    }
  }
}

}  // namespace
}  // namespace katt::attention
