#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/attention/tensor_cores/kernels/backward_statistics.hpp"
#include "ops/attention/tensor_cores/kernels/mma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/wgmma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/presets.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"
#include "tests/tile/warp_emulator.hpp"

// The backward kernels on tensor cores, run on the host by an emulator of their instructions:
// functors, masks and index arithmetic are the same as on a device.
namespace katt::attention {
namespace {

/// Runs a kernel on the emulator.
template <class Kernel>
void emulate(const Kernel& kernel) {
  EXPECT_EQ(testing::emulate_grid(kernel), "");
}

/// The kernels of flash_mma, for an element type and a tile.
template <class Element, int TileQ, int TileKv>
struct Mma {
  using T = Element;
  template <int HeadDim>
  static void run(const BackwardArgs& args, void* statistics) {
    emulate(
        impl::FlashMmaBackwardQ<T, HeadDim, impl::backward_block_rows, TileKv>(args, statistics));
    emulate(impl::FlashMmaBackwardKv<T, HeadDim, TileQ, TileKv>(args, statistics));
  }
};

/// The kernels of flash_wgmma, likewise.
template <class Element, int TileQ, int TileKv>
struct Wgmma {
  using T = Element;
  static constexpr bool takes_256 = true;
  template <int HeadDim>
  static void run(const BackwardArgs& args, void* statistics) {
    impl::visit_wgmma_backward<T, NoRule>(HeadDim, {TileQ, TileKv}, [&]<class... Kernels>() {
      (emulate(Kernels(args, statistics)), ...);
    });
  }
};

template <class Kernels>
Outputs emulate(const ProblemData& data, HeadLayout layout = HeadLayout::bhsd) {
  const auto run = [&](const BackwardArgs& args) {
    // Memory that the first kernel does not write for the others holds NaN.
    std::vector<impl::RowStatistics> statistics(
        impl::backward_statistics_bytes(args) / sizeof(impl::RowStatistics),
        {{{NAN, NAN}, {NAN, NAN}}, {{NAN, NAN}}});
    if (data.shape.head_dim <= 64) {
      Kernels::template run<64>(args, statistics.data());
    } else if (data.shape.head_dim <= 128) {
      Kernels::template run<128>(args, statistics.data());
    } else if constexpr (requires { Kernels::takes_256; }) {
      Kernels::template run<256>(args, statistics.data());
    }
  };
  return run_problem(data, Backend::serial, layout, {"flash", {}}, run);
}

template <class Kernels>
void expect_reference(const ProblemData& data, const std::string& what,
                      HeadLayout layout = HeadLayout::bhsd) {
  expect_reference(data, emulate<Kernels>(data, layout), what, true);
}

template <class Kernels>
void expect_reference_for_every_shape_and_mask() {
  for (const auto& [shape, mask] : with_some_masks(shapes)) {
    if (shape.head_dim > 128 && !requires { Kernels::takes_256; }) continue;
    const auto data = make_problem(shape, Dtype::bf16, mask);
    add_dout(*data);
    expect_reference<Kernels>(*data, describe(shape) + ", " + mask.name);
  }
}

TEST(AttentionBackwardMma, MatchesReferenceForEveryShapeAndMask) {
  expect_reference_for_every_shape_and_mask<Mma<bf16, 64, 64>>();
}

TEST(AttentionBackwardWgmma, MatchesReferenceForEveryShapeAndMask) {
  expect_reference_for_every_shape_and_mask<Wgmma<bf16, 64, 128>>();
}

TEST(AttentionBackwardMma, MatchesReferenceInF16AndWithOtherTiles) {
  for (const Shape& shape : {shapes[1], Shape{1, 2, 1, 70, 90, 96}, Shape{1, 6, 2, 45, 170, 64}}) {
    for (const MaskCase& mask : {masks[2], masks[5], masks[10]}) {
      const auto data = make_problem(shape, Dtype::f16, mask);
      add_dout(*data);
      const std::string what = describe(shape) + ", " + mask.name;
      expect_reference<Mma<f16, 32, 64>>(*data, what);
      expect_reference<Mma<f16, 64, 128>>(*data, what);
      expect_reference<Wgmma<f16, 64, 128>>(*data, what);
    }
  }
}

TEST(AttentionBackwardMma, ReadsSequenceMajorStorage) {
  auto data = make_problem(shapes[1], Dtype::bf16);
  data->shape.causal = true;
  add_dout(*data);
  expect_reference<Mma<bf16, 64, 64>>(*data, "bshd", HeadLayout::bshd);
  expect_reference<Wgmma<bf16, 64, 128>>(*data, "wgmma, bshd", HeadLayout::bshd);
}

TEST(AttentionBackwardMma, TakesAnyScale) {
  for (const double scale : {0.0, -0.5, 3.0}) {
    auto data = make_problem({1, 2, 1, 33, 70, 64}, Dtype::f16);
    data->shape.scale = scale;
    data->shape.causal = true;
    add_dout(*data);
    expect_reference<Mma<f16, 64, 64>>(*data, "scale " + std::to_string(scale));
    expect_reference<Wgmma<f16, 64, 128>>(*data, "wgmma, scale " + std::to_string(scale));
  }
}

TEST(AttentionBackwardMma, MatchesReferenceForLargeScores) {
  for (const MaskCase& mask : {masks[1], masks[5]}) {  // with the scale in the exponent, and before
    const auto data = make_problem({1, 2, 1, 33, 70, 40}, Dtype::f16, mask);
    stretch_scores(*data, largest_score(Dtype::f16));
    add_dout(*data);
    expect_reference<Mma<f16, 64, 64>>(*data, mask.name);
    expect_reference<Wgmma<f16, 64, 128>>(*data, "wgmma, " + mask.name);
  }
}

TEST(AttentionBackwardMma, HoldsForLargeScores) {
  auto data = make_problem({1, 2, 2, 40, 70, 64}, Dtype::bf16, 3, 40.0F);
  data->shape.scale = 1.0;
  add_dout(*data);
  for (const Outputs& g :
       {emulate<Mma<bf16, 64, 64>>(*data), emulate<Wgmma<bf16, 64, 128>>(*data)}) {
    for (const auto* gradient : {&g.dq, &g.dk, &g.dv}) {
      for (const float value : *gradient) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

}  // namespace
}  // namespace katt::attention
