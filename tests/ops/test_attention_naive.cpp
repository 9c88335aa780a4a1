// The naive variant of attention on a device: its products in batches, and its rows of scores in
// shared memory or, where they are too long, not.
#include <gtest/gtest.h>

#if defined(KATT_HAS_CUDA)

#include <string>

#include "ops/attention/backward.hpp"
#include "ops/attention/naive/device_rows.hpp"
#include "ops/linear/gemm/cublas.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"

namespace katt::attention {
namespace {

const Config naive_config{"naive", {}};

void expect_naive_passes(ProblemData& data, const std::string& what, HeadLayout layout) {
  const Kokkos::Cuda exec;
  expect_reference(data, run_forward(exec, data, naive_config, layout), what);
  add_dout(data);
  expect_reference(data, run_backward(exec, data, naive_config, layout), what, true);
}

class AttentionNaive : public ::testing::TestWithParam<Dtype> {
 protected:
  void SetUp() override {
    if (Kokkos::num_devices() < 1) GTEST_SKIP() << "skipped: no device";
  }
};

TEST_P(AttentionNaive, IsChosenInF32WhereItsScoresAreFew) {
  const Kokkos::Cuda exec;
  const auto is_chosen = [&](const Shape& shape, const auto& change) {
    const auto data = make_problem(shape, GetParam());
    ForwardArgs args = shape_args(*data);
    change(args);
    return forward_variants<Kokkos::Cuda>().resolve(exec, args, {}).variant == "naive";
  };
  const Shape shape{1, 4, 2, 67, 67, 24};
  const auto as_it_is = [](ForwardArgs&) {};
  EXPECT_EQ(is_chosen(shape, as_it_is), GetParam() == Dtype::f32);
  EXPECT_EQ(is_chosen(shape, [](ForwardArgs& args) { args.mask.causal = true; }),
            GetParam() == Dtype::f32);
  EXPECT_FALSE(is_chosen(shape, [](ForwardArgs& args) { args.mask.window_left = 7; }));
  EXPECT_FALSE(is_chosen(shape, [](ForwardArgs& args) { args.for_backward = true; }));
  EXPECT_FALSE(is_chosen({1, 4, 2, 1, 67, 24}, as_it_is)) << "decode is for one query";
  EXPECT_FALSE(is_chosen({2, 1, 1, 16384, 16384, 1}, as_it_is)) << "scores of 2 GiB";
}

TEST_P(AttentionNaive, TakesRowsThatABlockCannotKeep) {
  constexpr std::int64_t keys = 16501;
  ASSERT_FALSE(impl::naive::KeptRows(1, keys).kept);
  auto data = make_problem({1, 2, 1, 2, keys, 8}, GetParam());
  data->shape.causal = true;
  expect_naive_passes(*data, "long rows", HeadLayout::bhsd);
}

TEST_P(AttentionNaive, TakesEveryOrderOfHeadsInStorage) {
  for (const HeadLayout layout : {HeadLayout::bhsd, HeadLayout::bshd}) {
    for (const Shape& shape : {Shape{2, 6, 2, 9, 21, 16}, Shape{2, 4, 2, 1, 35, 16},
                               Shape{3, 2, 2, 17, 8, 24}, Shape{2, 4, 1, 5, 40, 8}}) {
      auto data = make_problem(shape, GetParam());
      data->shape.score.softcap = 3.0;
      expect_naive_passes(*data, describe(shape) + (layout == HeadLayout::bhsd ? " bhsd" : " bshd"),
                          layout);
    }
  }
}

TEST_P(AttentionNaive, SaysWhatMultiplies) {
  const auto data = make_problem({1, 4, 2, 8, 16, 8}, GetParam());
  EXPECT_EQ(
      forward_variants<Kokkos::Cuda>().find("naive").engine(Kokkos::Cuda(), shape_args(*data), {}),
      "cublaslt");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionNaive, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(BatchedGemm, JoinsAxesAlongWhichEveryMatrixGoesOn) {
  using linear::BatchAxis;
  using linear::joined;
  // Dense heads are one axis with the batch,
  const auto dense = joined({{3, 40, 80, 120}, {4, 10, 20, 30}});
  ASSERT_EQ(dense.size(), 1U);
  EXPECT_EQ(dense[0].count, 12);
  EXPECT_EQ(dense[0].b, 20);
  // heads that share a matrix are not, nor heads with something between them.
  EXPECT_EQ(joined({{3, 40, 20, 120}, {4, 10, 0, 30}}).size(), 2U);
  EXPECT_EQ(joined({{3, 41, 80, 120}, {4, 10, 20, 30}}).size(), 2U);
  EXPECT_TRUE(joined({{1, 5, 6, 7}, {1, 8, 9, 10}}).empty());
}

}  // namespace
}  // namespace katt::attention

#else

TEST(AttentionNaive, OnADevice) { GTEST_SKIP() << "skipped: no device in this build"; }

#endif
