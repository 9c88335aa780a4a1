#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "ops/attention/tensor_cores/kernels/longest_first.hpp"
#include "ops/attention/tensor_cores/kernels/mma_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/wgmma_kernel.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"
#include "tests/tile/warp_emulator.hpp"

// The tensor-core kernels of the CUDA backend, run on the host by an emulator of its instructions:
// functor, masks and index arithmetic are the same as on a device.
namespace katt::attention {
namespace {

using impl::FlashMma;
using impl::FlashWgmma;

template <class Kernel>
Outputs emulate(const ProblemData& data, HeadLayout layout = HeadLayout::bhsd) {
  return run_problem(data, Backend::serial, layout, [](const ForwardArgs& args) {
    // Two multiprocessors, so that persistent blocks have several tiles.
    const Kernel kernel = [&] {
      if constexpr (std::is_constructible_v<Kernel, ForwardArgs, NoRule, int>) {
        return Kernel(args, {}, 2);
      } else {
        return Kernel(args);
      }
    }();
    EXPECT_EQ(testing::emulate_grid(kernel), "");
  });
}

/// A kernel for the least padded head_dim that holds the problem's.
template <template <class, int, int, int> class Kernel, class T, int TileQ, int TileKv>
Outputs emulate(const ProblemData& data, HeadLayout layout = HeadLayout::bhsd) {
  if (data.shape.head_dim <= 64) return emulate<Kernel<T, 64, TileQ, TileKv>>(data, layout);
  if (data.shape.head_dim <= 128) return emulate<Kernel<T, 128, TileQ, TileKv>>(data, layout);
  return emulate<Kernel<T, 256, TileQ, TileKv>>(data, layout);
}

template <template <class, int, int, int> class Kernel, class T, int TileQ, int TileKv>
void expect_reference(const ProblemData& data, const std::string& what,
                      HeadLayout layout = HeadLayout::bhsd) {
  expect_reference(data, emulate<Kernel, T, TileQ, TileKv>(data, layout), what);
}

/// The same of one kernel: each takes a second to compile.
template <class Kernel>
void expect_reference(const ProblemData& data, const std::string& what) {
  expect_reference(data, emulate<Kernel>(data), what);
}

TEST(AttentionMma, MatchesReferenceForEveryShapeAndMask) {
  for (const auto& [shape, mask] : with_some_masks(shapes)) {
    const auto data = make_problem(shape, Dtype::bf16, mask);
    expect_reference<FlashMma, bf16, 64, 64>(*data, describe(shape) + ", " + mask.name);
  }
}

TEST(AttentionMma, MatchesReferenceInF16AndWithOtherTiles) {
  for (const Shape& shape : {shapes[1], shapes[6]}) {
    for (const MaskCase& mask : {masks[1], masks[5], masks[10]}) {
      const auto data = make_problem(shape, Dtype::f16, mask);
      expect_reference<FlashMma, f16, 128, 64>(*data, describe(shape) + ", " + mask.name);
      expect_reference<FlashMma, f16, 32, 32>(*data, describe(shape) + ", " + mask.name);
    }
  }
}

TEST(AttentionMma, ReadsSequenceMajorStorage) {
  auto data = make_problem(shapes[1], Dtype::bf16);
  data->shape.causal = true;
  expect_reference<FlashMma, bf16, 64, 64>(*data, "bshd", HeadLayout::bshd);
}

TEST(AttentionMma, TakesAnyScale) {
  for (const double scale : {0.0, -0.5, 3.0}) {
    auto data = make_problem({1, 2, 1, 33, 70, 64}, Dtype::f16);
    data->shape.scale = scale;
    data->shape.causal = true;
    expect_reference<FlashMma<f16, 64, 64, 64>>(*data, "scale " + std::to_string(scale));
  }
}

TEST(AttentionMma, HoldsForLargeScores) {
  auto data = make_problem({1, 2, 2, 40, 70, 64}, Dtype::bf16, 3, 40.0F);
  data->shape.scale = 1.0;
  expect_finite(emulate<FlashMma, bf16, 64, 64>(*data));
}

TEST(AttentionMma, MatchesReferenceForLargeScores) {
  for (const MaskCase& mask : {masks[1], masks[5]}) {  // with the scale in the exponent, and before
    const auto data = make_problem({1, 2, 1, 33, 70, 40}, Dtype::f16, mask);
    stretch_scores(*data, largest_score(Dtype::f16));
    data->link();
    expect_reference<FlashMma<f16, 64, 64, 64>>(*data, mask.name);
    expect_reference<FlashWgmma<f16, 64, 64, 64>>(*data, mask.name + ", wgmma");
  }
}

TEST(AttentionMma, NanReachesTheOutputOfItsRowOnly) {
  auto data = make_problem({1, 1, 1, 33, 40, 32}, Dtype::bf16);
  data->q[5 * 32 + 3] = std::numeric_limits<float>::quiet_NaN();
  const Outputs result = emulate<FlashMma, bf16, 64, 64>(*data);
  for (std::size_t i = 0; i < result.out.size(); ++i) {
    ASSERT_EQ(std::isnan(result.out[i]), i / 32 == 5) << i;
  }
}

TEST(AttentionWgmma, MatchesReferenceForEveryShapeAndMask) {
  for (const auto& [shape, mask] : with_some_masks(shapes)) {
    const auto data = make_problem(shape, Dtype::bf16, mask);
    expect_reference<FlashWgmma, bf16, 128, 64>(*data, describe(shape) + ", " + mask.name);
  }
}

TEST(AttentionWgmma, MatchesReferenceInF16AndWithOtherTiles) {
  // So many keys that every stage is used again, and again.
  const Shape long_keys{1, 4, 2, 70, 700, 64};
  for (const MaskCase& mask : {masks[0], masks[1], masks[5]}) {
    const auto data = make_problem(long_keys, Dtype::f16, mask);
    expect_reference<FlashWgmma<f16, 64, 128, 128>>(*data, describe(long_keys) + ", " + mask.name);
    expect_reference<FlashWgmma<f16, 64, 64, 64>>(*data, describe(long_keys) + ", " + mask.name);
    expect_reference<FlashWgmma<f16, 64, 192, 128>>(*data, describe(long_keys) + ", " + mask.name);
    expect_reference<FlashWgmma<f16, 64, 128, 80>>(*data, describe(long_keys) + ", " + mask.name);
    expect_reference<FlashWgmma<f16, 64, 128, 176>>(*data, describe(long_keys) + ", " + mask.name);
  }
}

/// A block that writes down which warpgroup began products, in order.
class WatchedBlock : public testing::EmulatedBlock {
 public:
  WatchedBlock(const testing::EmulatedBlock& block, std::vector<unsigned>& turns)
      : testing::EmulatedBlock(block), turns_(turns) {}

  template <class T, int N>
  void wgmma(float (&d)[N / 8][4], std::uint64_t a, std::uint64_t b, bool accumulate) const {
    // The first instruction of S = Q·Kᵀ.
    if (!accumulate && thread() % 128 == 0) turns_.push_back(thread() / 128 - 1);
    testing::EmulatedBlock::wgmma<T, N>(d, a, b, accumulate);
  }
  template <class T, int N, int First, int Blocks>
  void wgmma(float (&all)[Blocks][4], const std::uint32_t (&a)[4], std::uint64_t b,
             bool accumulate) const {
    testing::EmulatedBlock::wgmma<T, N, First>(all, a, b, accumulate);
  }

 private:
  std::vector<unsigned>& turns_;
};

TEST(AttentionWgmma, TheTwoComputingGroupsBeginTheirProductsInTurns) {
  const auto data = make_problem({1, 1, 1, 128, 330, 64}, Dtype::bf16);
  const DeviceProblem problem(*data, Backend::serial);
  const DeviceOutput output(*data, Backend::serial);
  const FlashWgmma<bf16, 64, 128, 64> kernel(forward_args(problem.args(), output));
  ASSERT_EQ(kernel.blocks, 1);
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<unsigned> turns;
    const auto run = [&](const testing::EmulatedBlock& block, std::int64_t item) {
      WatchedBlock watched(block, turns);
      kernel.run(watched, item);
    };
    ASSERT_EQ(testing::emulate_grid(kernel, run, seed), "");
    ASSERT_EQ(turns, (std::vector<unsigned>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1})) << seed;
  }
}

TEST(AttentionWgmma, ReadsNoValuesBehindTheLengthOfTheKeys) {
  auto data = make_problem({3, 4, 2, 70, 200, 40}, Dtype::bf16);
  data->kv_len = {131, 64, 0};
  for (std::size_t head = 0; head < 6; ++head) {
    const auto length = static_cast<std::size_t>(data->kv_len[head / 2]);
    for (std::size_t i = (head * 200 + length) * 40; i < (head + 1) * 200 * 40; ++i) {
      data->k[i] = data->v[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  data->link();
  const Outputs result = emulate<FlashWgmma, bf16, 128, 64>(*data);
  for (const float value : result.out) ASSERT_TRUE(std::isfinite(value));
}

TEST(AttentionWgmma, CopiesRowsThatNoBoxDescribes) {
  for (const std::int64_t group : {3, 5}) {
    auto data = make_problem({1, 2 * group, 2, 61, 131, 72}, Dtype::bf16);
    data->shape.causal = true;
    data->link();
    expect_reference<FlashWgmma, bf16, 128, 64>(*data, "groups of " + std::to_string(group));
  }
}

TEST(AttentionWgmma, MatchesReferenceForHeadDimsOfPartsOfStripes) {
  for (const std::int64_t head_dim : {72, 96, 136, 192}) {
    for (const MaskCase& mask : {masks[0], masks[1], masks[5]}) {
      const auto data =
          make_problem({1, 3, 1, 50, 300, head_dim}, Dtype::bf16, mask);  // single rows
      const std::string what = "head_dim " + std::to_string(head_dim) + ", " + mask.name;
      const Outputs result = head_dim <= 96 ? emulate<FlashWgmma<bf16, 96, 128, 128>>(*data)
                                            : emulate<FlashWgmma<bf16, 192, 128, 96>>(*data);
      expect_reference(*data, result, what);
    }
    auto data = make_problem({1, 2, 1, 50, 300, head_dim}, Dtype::f16);
    const Outputs result = head_dim <= 96 ? emulate<FlashWgmma<f16, 96, 128, 64>>(*data)
                                          : emulate<FlashWgmma<f16, 192, 128, 64>>(*data);
    expect_reference(*data, result, "head_dim " + std::to_string(head_dim));
  }
}

TEST(AttentionWgmma, EveryTileIsOfOneBlock) {
  struct Case {
    std::int64_t heads, row_tiles, head_bytes;
    int blocks;
  };
  for (const Case& c :
       {Case{1, 1, 1, 132}, Case{7, 5, 1 << 20, 132}, Case{16, 64, 4 << 20, 132},
        Case{16, 64, 0, 132}, Case{5, 33, 10 << 20, 7}, Case{3, 128, 64 << 20, 132}}) {
    const impl::LongestFirst order(c.heads, c.row_tiles, impl::LongestFirst::cached(c.head_bytes),
                                   static_cast<std::uint32_t>(c.blocks));
    std::vector<int> seen(static_cast<std::size_t>(c.heads * c.row_tiles));
    ASSERT_EQ(order.tiles(), seen.size());
    for (std::uint32_t block = 0; block < order.blocks(); ++block) {
      std::uint32_t place = 0;
      for (std::uint32_t round = 0; (place = order.place(block, round)) < order.tiles(); ++round) {
        const auto at = order.at(place);
        ASSERT_LT(at.head, c.heads);
        ASSERT_LT(at.row_tile, c.row_tiles);
        ++seen[at.head * static_cast<std::size_t>(c.row_tiles) + at.row_tile];
      }
    }
    for (const int times : seen) ASSERT_EQ(times, 1);
  }
}

TEST(AttentionWgmma, BlocksOfACausalMaskHaveEvenWork) {
  const impl::LongestFirst order(16, 64, 16, 132);
  std::vector<std::uint32_t> work(order.blocks());
  for (std::uint32_t block = 0; block < order.blocks(); ++block) {
    std::uint32_t place = 0;
    for (std::uint32_t round = 0; (place = order.place(block, round)) < order.tiles(); ++round) {
      work[block] += order.at(place).row_tile + 1;  // tiles of keys that it sees
    }
  }
  const double mean = 16 * 64 * 65 / 2 / 132.0;
  for (const std::uint32_t one : work) EXPECT_NEAR(one, mean, 0.02 * mean);
}

TEST(AttentionWgmma, NanReachesTheOutputOfItsRowOnly) {
  auto data = make_problem({1, 1, 1, 33, 40, 32}, Dtype::bf16);
  data->q[5 * 32 + 3] = std::numeric_limits<float>::quiet_NaN();
  const Outputs result = emulate<FlashWgmma, bf16, 128, 64>(*data);
  for (std::size_t i = 0; i < result.out.size(); ++i) {
    ASSERT_EQ(std::isnan(result.out[i]), i / 32 == 5) << i;
  }
}

}  // namespace
}  // namespace katt::attention
