#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "ops/attention/attention.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"
#include "tile/bf16/bf16_units.hpp"

namespace katt::attention {
namespace {

/// Every variant with every tile that takes the problem; naive comes first.
template <class Exec>
std::vector<Config> all_configs(const ProblemData& data) {
  return configs_of(forward_variants<Exec>(), shape_args(data));
}

/// The variants that must take problems of a dtype somewhere on this machine: one that refuses
/// everything fails.
template <class Exec>
std::set<std::string> expected_variants(Dtype dtype) {
  std::set<std::string> names{"naive", "flash", "decode"};
  if constexpr (is_host_v<Exec>) {
    if (dtype == Dtype::bf16) names.merge(panels_of_this_machine());
  } else if (dtype != Dtype::f32) {
    names.insert("flash_mma");
  }
  return names;
}

template <class Exec>
void expect_reference(const ProblemData& data, const std::string& what,
                      HeadLayout layout = HeadLayout::bhsd, const Exec& exec = Exec()) {
  const Reference reference(data);
  for (const Config& config : all_configs<Exec>(data)) {
    const bench::Errors errors = reference.compare(run_forward(exec, data, config, layout));
    EXPECT_TRUE(errors.status.is_ok()) << what << ", " << name_of(data.dtype) << ", "
                                       << describe(config) << ": " << errors.status.reason();
  }
}

class AttentionForward : public ::testing::TestWithParam<Dtype> {};

TEST_P(AttentionForward, MatchesReferenceForEveryShapeMaskVariantAndTile) {
  using Exec = Kokkos::DefaultExecutionSpace;
  std::set<std::string> missing = expected_variants<Exec>(GetParam());
  for (const auto& [shape, mask] : with_masks(shapes)) {
    const auto data = make_problem(shape, GetParam(), mask);
    for (const Config& config : all_configs<Exec>(*data)) missing.erase(config.variant);
    expect_reference<Exec>(*data, describe(shape) + ", " + mask.name);
  }
  for (const std::string& variant : missing) ADD_FAILURE() << variant << " refuses every problem";
}

TEST_P(AttentionForward, ReadsSequenceMajorStorage) {
  for (const Shape& shape : {shapes[1], shapes[5]}) {
    auto data = make_problem(shape, GetParam());
    data->shape.causal = true;
    expect_reference<Kokkos::DefaultExecutionSpace>(*data, describe(shape), HeadLayout::bshd);
  }
}

TEST_P(AttentionForward, SerialMatchesReference) {
  auto data = make_problem(shapes[1], GetParam());
  data->shape.causal = true;
  expect_reference(*data, "serial", HeadLayout::bhsd, serial_host());
}

TEST_P(AttentionForward, HoldsForLargeScores) {
  // Scores of about ±10^4: every row is close to a one-hot choice of its largest score.
  auto data = make_problem({1, 2, 2, 40, 70, 64}, GetParam(), 3, 40.0F);
  data->shape.scale = 1.0;
  for (const Config& config : all_configs<Kokkos::DefaultExecutionSpace>(*data)) {
    SCOPED_TRACE(config.variant);
    expect_finite(run_forward(Kokkos::DefaultExecutionSpace(), *data, config));
  }
}

TEST_P(AttentionForward, OneKeyGivesItsValue) {
  auto data = make_problem({1, 2, 1, 19, 1, 24}, GetParam());
  for (const Config& config : all_configs<Kokkos::DefaultExecutionSpace>(*data)) {
    const Outputs result = run_forward(Kokkos::DefaultExecutionSpace(), *data, config);
    for (std::size_t i = 0; i < result.out.size(); ++i) {
      // P / ΣP is one but for f32 roundings: the maximum is rounded, the score beside it is not.
      ASSERT_FLOAT_EQ(result.out[i], data->v[i % 24]) << config.variant << " at " << i;
    }
  }
}

TEST_P(AttentionForward, RowWithoutVisibleKeyIsZero) {
  // More queries than keys under a causal mask: the first seq_q − seq_kv queries see nothing.
  auto data = make_problem({1, 2, 2, 50, 20, 16}, GetParam());
  data->shape.causal = true;
  for (const Config& config : all_configs<Kokkos::DefaultExecutionSpace>(*data)) {
    const Outputs result = run_forward(Kokkos::DefaultExecutionSpace(), *data, config);
    for (std::size_t row = 0; row < 100; ++row) {
      const bool blind = row % 50 < 30;
      EXPECT_EQ(std::isinf(result.lse[row]) && result.lse[row] < 0, blind) << config.variant;
      for (std::size_t c = 0; c < 16 && blind; ++c) ASSERT_EQ(result.out[row * 16 + c], 0.0F);
    }
  }
}

TEST_P(AttentionForward, NanReachesTheOutput) {
  auto data = make_problem({1, 1, 1, 33, 40, 32}, GetParam());
  data->q[5 * 32 + 3] = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t entries : {0, 33 * 40}) {  // without a bias, and with one
    data->bias.assign(entries, -1.0F);
    for (const Config& config : all_configs<Kokkos::DefaultExecutionSpace>(*data)) {
      const Outputs result = run_forward(Kokkos::DefaultExecutionSpace(), *data, config);
      EXPECT_TRUE(std::isnan(result.out[5 * 32])) << config.variant << ", bias of " << entries;
      EXPECT_FALSE(std::isnan(result.out[6 * 32])) << config.variant << ", bias of " << entries;
    }
  }
}

#if defined(KOKKOS_ENABLE_OPENMP)
TEST_P(AttentionForward, FlashGivesTheSameBitsOnAnyNumberOfThreads) {
  auto data = make_problem({2, 4, 2, 150, 170, 64}, GetParam());
  for (const Config& config : all_configs<Kokkos::OpenMP>(*data)) {
    if (!config.variant.starts_with("flash")) continue;
    EXPECT_TRUE(run_forward(Kokkos::OpenMP(1), *data, config) ==
                run_forward(Kokkos::OpenMP(), *data, config))
        << describe(config);
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionForward, ::testing::ValuesIn(all_dtypes),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(AttentionAuto, IsTheFastestThatAccepts) {
  const Host exec = serial_host();
  const auto chosen = [&](const Shape& shape, Dtype dtype, const Setting& tile = {}) {
    const auto data = make_problem(shape, dtype);
    const ForwardArgs args = shape_args(*data);
    const Config config = forward_variants<Host>().resolve(exec, args, {"auto", tile});
    EXPECT_TRUE(forward_variants<Host>().supports(exec, args, config).is_ok()) << config.variant;
    return config.variant;
  };
  const std::string unit = tile::bf16_panels::name_of(tile::bf16_panels::unit());
  const std::string on_tiles = unit.empty() ? "flash" : "flash_" + unit;
  const Shape many{1, 8, 2, 128, 128, 64};
  EXPECT_EQ(chosen(many, Dtype::f32), "flash");
  EXPECT_EQ(chosen(many, Dtype::f16), "flash");
  EXPECT_EQ(chosen(many, Dtype::bf16), on_tiles);
  EXPECT_EQ(chosen({1, 8, 2, 1, 128, 64}, Dtype::bf16), "decode") << "one query";
  EXPECT_EQ(chosen({1, 256, 2, 1, 128, 64}, Dtype::f32), "flash") << "more rows than decode takes";
  EXPECT_EQ(chosen({1, 8, 2, 1, 128, 64}, Dtype::f32, {32, 32}), "flash")
      << "decode lacks the tile";
  const auto data = make_problem({1, 8, 2, 1, 128, 64}, Dtype::f32);
  ForwardArgs args = shape_args(*data);
  args.for_backward = true;
  EXPECT_EQ(forward_variants<Host>().resolve(exec, args, {}).variant, "flash")
      << "the backward pass sums products as flash does";
}

TEST(AttentionRefusal, UnitsNameTheReason) {
  const auto data = make_problem({1, 2, 2, 8, 8, 16}, Dtype::f32);
  const ForwardArgs args = shape_args(*data);
  for (const char* name : {"flash_amx", "flash_avx512_bf16"}) {
    const auto status = forward_variants<Host>().supports(serial_host(), args, {name, {}});
    EXPECT_EQ(status.reason(), "takes bf16, not f32");
  }
  ForwardArgs brain = args;
  brain.q.dtype = Dtype::bf16;
  const auto status = forward_variants<Host>().supports(serial_host(), brain, {"flash_amx", {}});
  EXPECT_EQ(status.reason(), tile::bf16_panels::refusal(tile::bf16_panels::UnitName::amx));
}

TEST(AttentionRefusal, NamesTheReason) {
  const Host exec = serial_host();
  auto data = make_problem({1, 4, 2, 8, 8, 16}, Dtype::f32);
  const DeviceProblem problem(*data, Backend::serial);
  const DeviceOutput output(*data, Backend::serial);
  ForwardArgs args = forward_args(problem.args(), output);

  const Status tile = forward(exec, args, {"flash", {48, 64}}, {});
  EXPECT_EQ(tile.code(), Status::Code::skipped);
  EXPECT_NE(tile.reason().find("48x64"), std::string::npos) << tile.reason();
  EXPECT_EQ(forward(exec, args, {"naive", {64, 64}}, {}).code(), Status::Code::skipped);

  EXPECT_THROW((void)forward(exec, args, {"flash", {}}, {}), InputError);  // no workspace
  EXPECT_THROW((void)forward(exec, args, {"fast", {}}, {}), InputError);   // unknown variant
  args.k.extent[1] = 3;
  EXPECT_THROW(check(args), InputError);
  args = forward_args(problem.args(), output);
  args.v.dtype = Dtype::f16;
  EXPECT_THROW(check(args), InputError);
}

/// All outputs of two results agree to a few roundings of f32.
void require_close(const Outputs& a, const Outputs& b) {
  for (std::size_t i = 0; i < a.out.size(); ++i) {
    RC_ASSERT(std::abs(a.out[i] - b.out[i]) <= 2e-5F * (1.0F + std::abs(b.out[i])));
  }
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    RC_ASSERT(a.lse[i] == b.lse[i] ||
              std::abs(a.lse[i] - b.lse[i]) <= 2e-5F * (1.0F + std::abs(b.lse[i])));
  }
}

RC_GTEST_PROP(AttentionProperty, EveryVariantMatchesReferenceAtAnySizeOfScores, ()) {
  using Exec = Kokkos::DefaultExecutionSpace;
  const auto data = arbitrary_problem();
  const Reference reference(*data);
  for (const Config& config : one_of_each_variant(all_configs<Exec>(*data))) {
    const Outputs result = run_forward(Exec(), *data, config);
    const Status status = reference.compare(result).status;
    if (!status.is_ok()) RC_FAIL(describe(config) + ": " + status.reason());
  }
}

RC_GTEST_PROP(AttentionProperty, PermutingKeysChangesNothing, ()) {
  const Kokkos::DefaultExecutionSpace exec;
  auto data = make_problem(arbitrary_shape(), Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  const Outputs before = run_forward(exec, *data, {"flash", {}});
  // Reverse the keys of every head, with their values.
  const auto d = static_cast<std::ptrdiff_t>(data->shape.head_dim);
  const auto n = static_cast<std::ptrdiff_t>(data->shape.seq_kv);
  for (std::vector<float>* tensor : {&data->k, &data->v}) {
    for (auto head = tensor->begin(); head != tensor->end(); head += n * d) {
      for (std::ptrdiff_t j = 0; j < n / 2; ++j) {
        std::swap_ranges(head + j * d, head + (j + 1) * d, head + (n - 1 - j) * d);
      }
    }
  }
  require_close(run_forward(exec, *data, {"flash", {}}), before);
}

RC_GTEST_PROP(AttentionProperty, BlockMaskOfOnesEqualsDense, ()) {
  const Kokkos::DefaultExecutionSpace exec;
  auto data = make_problem(arbitrary_shape(), Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  const Outputs dense = run_forward(exec, *data, {"flash", {}});
  const std::int64_t size = *rc::gen::inRange<std::int64_t>(1, 80);
  data->shape.block_size = size;
  data->block_mask.assign(static_cast<std::size_t>(((data->shape.seq_q + size - 1) / size) *
                                                   ((data->shape.seq_kv + size - 1) / size)),
                          1);
  data->link();
  RC_ASSERT(run_forward(exec, *data, {"flash", {}}) == dense);
}

RC_GTEST_PROP(AttentionProperty, RowsOfOnesGiveOnes, ()) {
  // The rows of softmax(S) sum to one: with V = 1 the output is 1.
  auto data = make_problem(arbitrary_shape(), Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  std::fill(data->v.begin(), data->v.end(), 1.0F);
  for (const float value : run_forward(Kokkos::DefaultExecutionSpace(), *data, {"flash", {}}).out) {
    RC_ASSERT(std::abs(value - 1.0F) < 1e-5F);
  }
}

TEST(AttentionWork, CountsVisiblePairs) {
  auto data = make_problem({1, 2, 2, 8, 8, 16}, Dtype::f32);
  const ForwardArgs dense = shape_args(*data);
  EXPECT_EQ(forward_flops(dense), 4.0 * 2 * 64 * 16);
  data->shape.causal = true;
  EXPECT_EQ(forward_flops(shape_args(*data)), 4.0 * 2 * 36 * 16);
  EXPECT_EQ(forward_bytes(dense), 4.0 * 4 * 2 * 8 * 16 + 4.0 * 2 * 8) << "lse besides";
}

}  // namespace
}  // namespace katt::attention
