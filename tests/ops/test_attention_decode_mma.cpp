#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/attention/decode/mma_kernel.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_pages.hpp"
#include "tests/ops/attention_problems.hpp"
#include "tests/tile/warp_emulator.hpp"

// Decoding on tensor cores, run on the host by an emulator of its instructions.
namespace katt::attention {
namespace {

using impl::DecodeGrid;
using impl::DecodeMma;
using impl::DecodeShape;
using impl::PieceBytes;

/// The kernel for the least padded head_dim, on a grid of at most `blocks`.
template <class T, bool Paged, class Shape, class Args>
void run_kernel(const Args& args, int unit_keys, std::int64_t blocks, std::uint64_t epoch) {
  const DecodeGrid grid(args, unit_keys, blocks);
  const auto launch = [&]<int HeadDim>() {
    // A workspace begins with any contents; epochs differ from launch to launch.
    std::vector<std::byte> memory(PieceBytes(grid, HeadDim).all() + 128, std::byte{0xFF});
    void* first = memory.data();
    std::size_t space = memory.size();
    std::align(128, space - 128, first, space);
    const Workspace workspace{static_cast<std::byte*>(first), space};
    for (int repetition = 0; repetition < 2; ++repetition) {  // like a graph
      const DecodeMma<T, HeadDim, Paged, Shape> kernel(args, {}, grid, epoch, workspace);
      EXPECT_EQ(testing::emulate_grid(kernel), "");
    }
  };
  if (args.head_dim() <= 64) return launch.template operator()<64>();
  if (args.head_dim() <= 128) return launch.template operator()<128>();
  launch.template operator()<256>();
}

/// `page_size` 0: contiguous keys.
template <class T, class Shape>
Outputs run(const ProblemData& data, std::int64_t page_size, int unit_keys, std::int64_t blocks,
            HeadLayout layout = HeadLayout::bhsd) {
  constexpr std::uint64_t epoch = 0x123456700000;
  return run_problem(data, Backend::serial, layout, [&](const ForwardArgs& args) {
    if (page_size == 0) return run_kernel<T, false, Shape>(args, unit_keys, blocks, epoch);
    const Pages pages(data, Backend::serial, page_size, HeadLayout::bhsd);
    run_kernel<T, true, Shape>(pages.args(args), unit_keys, blocks, epoch);
  });
}

using Small = DecodeShape<16, 2, 2, 1>;
using Wide = DecodeShape<32, 3, 4, 1>;

TEST(AttentionDecodeMma, MatchesReferenceForEveryShapeAndMask) {
  for (const auto& [shape, mask] : with_masks(decode_shapes)) {
    const auto data = make_problem(shape, Dtype::bf16, mask);
    for (const std::int64_t page_size : {0, 16}) {
      // Pages have room for more keys than the problem has, of which lengths may not tell.
      const auto is_beyond = [&](std::int64_t length) { return length > shape.seq_kv; };
      if (page_size != 0 && std::ranges::any_of(data->kv_len, is_beyond)) continue;
      const std::string what =
          describe(shape) + ", " + mask.name + ", pages of " + std::to_string(page_size);
      expect_reference(*data, run<bf16, Small>(*data, page_size, 64, 7), what);
    }
  }
}

TEST(AttentionDecodeMma, MatchesReferenceWithOtherShapesOfABlock) {
  for (const Shape& shape : {decode_shapes[1], decode_shapes[3], decode_shapes[6]}) {
    for (const MaskCase& mask : {masks[0], masks[1], masks[2], masks[10]}) {
      const auto data = make_problem(shape, Dtype::f16, mask);
      const std::string what = describe(shape) + ", " + mask.name;
      expect_reference(*data, run<f16, Wide>(*data, 0, 128, 3), what);
      expect_reference(*data, run<f16, Wide>(*data, 48, 64, 5), what + ", pages of 48");
      expect_reference(*data, run<f16, Wide>(*data, 0, 64, 5, HeadLayout::bshd), what + ", bshd");
    }
  }
}

TEST(AttentionDecodeMma, DividesManySequencesOfAnyLengthAmongAnyNumberOfBlocks) {
  // More sequences than a warp has lanes, empty ones among them.
  auto data = make_problem({37, 2, 1, 1, 150, 16}, Dtype::bf16);
  for (std::int64_t b = 0; b < 37; ++b) data->kv_len.push_back(b * 53 % 151);
  data->link();
  for (const std::int64_t blocks : {1, 2, 5, 36, 64, 1000}) {
    expect_reference(*data, run<bf16, Small>(*data, 0, 32, blocks),
                     std::to_string(blocks) + " blocks");
  }
}

TEST(AttentionDecodeMma, HoldsForLargeScores) {
  auto data = make_problem({1, 12, 2, 1, 300, 64}, Dtype::bf16, 3, 40.0F);
  data->shape.scale = 1.0;
  const Outputs result = run<bf16, Small>(*data, 0, 64, 7);
  expect_finite(result);
  expect_reference(*data, result, "large scores");
}

}  // namespace
}  // namespace katt::attention
