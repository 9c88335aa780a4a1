#include <gtest/gtest.h>

#include <vector>

#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/tensor_cores/presets.hpp"

namespace katt::attention {
namespace {

TEST(AttentionPresets, AreFoundByName) {
  EXPECT_EQ(find_gpu("a100")->title, "A100");
  EXPECT_EQ(find_gpu("h200")->shared_bytes, 228 * 1024);
  EXPECT_FALSE(find_gpu("a101"));
}

TEST(AttentionPresets, ATileIsThereForEveryDeviceAndHeadDim) {
  for (const Gpu& gpu : gpus) {
    for (const std::int64_t head_dim : {8, 64, 72, 128, 136, 256}) {
      const auto tile = impl::tile_for(gpu, impl::mma_on_gpus, head_dim);
      ASSERT_TRUE(tile) << gpu.name << " " << head_dim;
      EXPECT_TRUE(impl::gpu_supports(gpu, impl::mma_on_gpus, head_dim, *tile).is_ok());
      EXPECT_GT(impl::occupancy(gpu, impl::mma_on_gpus, head_dim, *tile), 0);
      EXPECT_EQ(impl::tile_for(gpu, impl::wgmma_on_gpus, head_dim).has_value(),
                gpu.capability == 90)
          << gpu.name;
    }
  }
}

TEST(AttentionPresets, ATileOfTheBackwardPassIsThereWhereItIsBuilt) {
  for (const Gpu& gpu : gpus) {
    for (const std::int64_t head_dim : {8, 64, 72, 128}) {
      const auto tile = impl::tile_for(gpu, impl::mma_backward_on_gpus, head_dim);
      ASSERT_TRUE(tile) << gpu.name << " " << head_dim;
      EXPECT_GT(impl::occupancy(gpu, impl::mma_backward_on_gpus, head_dim, *tile), 0);
      EXPECT_EQ(impl::tile_for(gpu, impl::wgmma_backward_on_gpus, head_dim).has_value(),
                gpu.capability == 90)
          << gpu.name;
    }
    EXPECT_FALSE(impl::tile_for(gpu, impl::mma_backward_on_gpus, 136));
    EXPECT_EQ(impl::tile_for(gpu, impl::wgmma_backward_on_gpus, 136).has_value(),
              gpu.capability == 90);
  }
  const std::vector<Tile> at_64{{32, 64}, {64, 64}};
  const std::vector<Tile> at_128{{32, 64}};
  EXPECT_EQ(impl::backward_tiles(64), at_64);
  EXPECT_EQ(impl::backward_tiles(128), at_128);
  EXPECT_EQ(impl::tensor_core_backward_takes(136).reason(),
            "takes head_dim up to 128, not 136: dK and dV of a tile would not fit the registers");
}

TEST(AttentionPresets, PortableTilesFitEveryDeviceAtEveryHeadDim) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    const Tile forward = impl::portable_device_tile<ForwardArgs>(head_dim);
    const Tile backward = impl::portable_device_tile<BackwardArgs>(head_dim);
    for (const Gpu& gpu : gpus) {
      const auto available = static_cast<std::size_t>(gpu.block_shared_bytes);
      EXPECT_LE(impl::portable_shared_bytes<ForwardArgs>(forward, head_dim), available) << head_dim;
      EXPECT_LE(impl::portable_shared_bytes<BackwardArgs>(backward, head_dim), available)
          << head_dim;
    }
  }
  EXPECT_EQ(impl::portable_device_tile<ForwardArgs>(128), (Tile{64, 32}));
  EXPECT_EQ(impl::portable_device_tile<ForwardArgs>(256), (Tile{32, 16}));
  EXPECT_EQ(impl::portable_device_tile<ForwardArgs>(256, 232448), (Tile{64, 32}));
  EXPECT_EQ(impl::portable_device_tile<BackwardArgs>(64), (Tile{32, 32}));
  EXPECT_EQ(impl::portable_device_tile<BackwardArgs>(128), (Tile{32, 16}));
  EXPECT_EQ(impl::portable_device_tile<BackwardArgs>(256), (Tile{16, 8}));
  // As the engines count it on a device: Q in groups, S, O, staged K or V, with rows of an odd
  // length, and three statistics a row.
  EXPECT_EQ(impl::portable_shared_bytes<ForwardArgs>({64, 32}, 128),
            4U * (129 * 64 + 32 * 64 + 64 * 129 + 32 * 129 + 3 * 64));
}

TEST(AttentionPresets, RefuseWithTheReason) {
  const auto reason = [](const char* gpu, const impl::TensorCoreVariant& variant,
                         std::int64_t head_dim, Tile tile) {
    return impl::gpu_supports(*find_gpu(gpu), variant, head_dim, tile).reason();
  };
  EXPECT_EQ(
      reason("rtx3090ti", impl::mma_on_gpus, 256, {128, 64}),
      "flash_mma with tile 128x64 at head_dim 256 needs 131072 bytes of shared memory, a block "
      "of an RTX 3090 Ti can have 101376");
  EXPECT_EQ(reason("rtx5080", impl::wgmma_on_gpus, 64, {128, 64}),
            "flash_wgmma does not run on compute capability 12.0");
  EXPECT_EQ(reason("h200", impl::wgmma_on_gpus, 256, {128, 128}),
            "flash_wgmma with tile 128x128 at head_dim 256 is not built");
  EXPECT_EQ(reason("h200", impl::mma_on_gpus, 64, {48, 64}),
            "flash_mma with tile 48x64 at head_dim 64 is not built");
  EXPECT_EQ(reason("a100", impl::mma_on_gpus, 256, {128, 64}), "");
}

TEST(AttentionPresets, OccupancyFollowsRegistersThreadsAndSharedMemory) {
  const Gpu a100 = *find_gpu("a100");
  const Gpu rtx = *find_gpu("rtx3090ti");
  // Nothing binds but the number of blocks; then threads, registers, shared memory.
  EXPECT_EQ(impl::resident_blocks(a100, {32, 16, 0}), 32);
  EXPECT_EQ(impl::resident_blocks(a100, {512, 16, 0}), 4);
  EXPECT_EQ(impl::resident_blocks(rtx, {512, 16, 0}), 3);
  EXPECT_EQ(impl::resident_blocks(a100, {128, 255, 0}), 2);
  EXPECT_EQ(impl::resident_blocks(a100, {128, 168, 0}), 3);
  EXPECT_EQ(impl::resident_blocks(a100, {128, 32, 81 * 1024}), 2);
  EXPECT_EQ(impl::resident_blocks(rtx, {128, 32, 81 * 1024}), 1);
  // head_dim 128, 64x64: 48 KiB and 193 registers: two blocks of four warps on 64 warps.
  EXPECT_DOUBLE_EQ(impl::occupancy(a100, impl::mma_on_gpus, 128, {64, 64}), 8.0 / 64);
  EXPECT_DOUBLE_EQ(impl::occupancy(rtx, impl::mma_on_gpus, 256, {64, 64}), 4.0 / 48);
  // dK and dV of head_dim 64, 32 rows at a time: 167 registers, three blocks.
  EXPECT_DOUBLE_EQ(impl::occupancy(a100, impl::mma_backward_on_gpus, 64, {32, 64}), 12.0 / 64);
  EXPECT_DOUBLE_EQ(impl::occupancy(a100, impl::mma_backward_on_gpus, 64, {64, 64}), 8.0 / 64);
}

TEST(AttentionPresets, RegistersAreThoseOfTheArchitecture) {
  // The same kernel takes 164 registers on sm_86, three blocks, and 224 on sm_120, two.
  EXPECT_DOUBLE_EQ(impl::occupancy(*find_gpu("rtx3090ti"), impl::mma_on_gpus, 64, {64, 64}),
                   12.0 / 48);
  EXPECT_DOUBLE_EQ(impl::occupancy(*find_gpu("rtx5080"), impl::mma_on_gpus, 64, {64, 64}),
                   8.0 / 48);
  const impl::Registers known("FlashMma", 64, 64, 64);
  EXPECT_EQ(known.on(89), known.on(86));  // the latest known one before it
  EXPECT_EQ(known.on(75), known.on(80));
  EXPECT_EQ(impl::Registers("FlashMma", 64, 64, 72).on(80), 255);
  EXPECT_EQ(impl::Registers(168).on(120), 168);
  for (const impl::CompiledRegisters& row : impl::compiled_registers) {
    for (const int registers : row.registers) EXPECT_TRUE(registers > 0 && registers <= 255);
  }
}

}  // namespace
}  // namespace katt::attention
