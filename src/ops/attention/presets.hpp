#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "ops/attention/tensor_cores/mma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/mma_kernel.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"
#include "ops/attention/tensor_cores/wgmma_kernel.hpp"

/// Tiles of the tensor-core variants by the name of a device: those whose threads, registers and
/// shared memory let the most warps be resident on a multiprocessor. Computed, not measured: what a
/// tuning file says of a machine comes before them.
namespace katt::attention {

/// What a multiprocessor of a device has (CUDA C++ Programming Guide, "Technical Specifications per
/// Compute Capability").
struct DevicePreset {
  std::string_view name;  ///< as users type it
  std::string_view title;
  int capability;          ///< 10 · major + minor
  int threads;             ///< resident threads
  int blocks;              ///< resident blocks
  int registers;           ///< 32-bit registers
  int shared_bytes;        ///< of the multiprocessor
  int block_shared_bytes;  ///< that one block can ask for
};

inline constexpr std::array device_presets{
    DevicePreset{"rtx3090ti", "RTX 3090 Ti", 86, 1536, 16, 65536, 102400, 101376},
    DevicePreset{"rtx5080", "RTX 5080", 120, 1536, 24, 65536, 102400, 101376},
    DevicePreset{"a100", "A100", 80, 2048, 32, 65536, 167936, 166912},
    DevicePreset{"h100", "H100", 90, 2048, 32, 65536, 233472, 232448},
    DevicePreset{"h200", "H200", 90, 2048, 32, 65536, 233472, 232448},
};

enum class Pass { forward, backward };

/// The preset of that name, or nothing.
constexpr std::optional<DevicePreset> device_preset(std::string_view name) {
  for (const DevicePreset& preset : device_presets) {
    if (preset.name == name) return preset;
  }
  return std::nullopt;
}

namespace impl {

/// The tiles of a tensor-core variant.
inline std::vector<Tile> tensor_core_tiles(std::string_view variant, Pass pass) {
  if (pass == Pass::backward) return MmaBackwardTiles::all();
  return variant == "flash_wgmma" ? WgmmaTiles::all() : MmaTiles::all();
}

/// What a block of a kernel takes.
struct BlockNeeds {
  int threads;
  int registers;  ///< of a thread
  int shared_bytes;
};

/// Registers as scripts/kernel_table prints them for sm_80 and sm_90a, rounded up to eight; the
/// launch bounds of flash_wgmma fix its own.
constexpr int mma_registers(int head_dim) {
  return head_dim <= 64 ? 168 : head_dim <= 128 ? 208 : 256;
}
/// Of the kernel of dK and dV.
constexpr int mma_backward_registers(int head_dim, int tile_q) {
  return head_dim <= 64 && tile_q <= 32 ? 192 : 248;
}

/// What the kernel of a variant takes, or nothing where it is not built; of the two kernels of the
/// backward pass the larger shared memory. head_dim need not be one of the padded ones.
inline std::optional<BlockNeeds> block_needs(std::string_view variant, std::int64_t head_dim,
                                             Tile tile, Pass pass = Pass::forward) {
  std::optional<BlockNeeds> needs;
  if (pass == Pass::backward) {
    if (variant != "flash_mma" || !mma_backward_takes(head_dim).is_ok()) return needs;
    visit_backward_tile(head_dim, tile, [&]<int HeadDim, class Shape>() {
      using Keys = FlashMmaBackwardKv<bf16, HeadDim, Shape::q, Shape::kv>;
      using Queries = FlashMmaBackwardQ<bf16, HeadDim, backward_block_rows, Shape::kv>;
      needs = {Keys::threads, mma_backward_registers(HeadDim, Shape::q),
               std::max(Keys::shared_bytes, Queries::shared_bytes)};
    });
  } else if (variant == "flash_mma") {
    visit_tensor_core_tile<MmaTiles>(head_dim, tile, [&]<int HeadDim, class Shape>() {
      using Kernel = FlashMma<bf16, HeadDim, Shape::q, Shape::kv>;
      needs = {Kernel::threads, mma_registers(HeadDim), Kernel::shared_bytes};
    });
  } else if (variant == "flash_wgmma") {
    visit_tensor_core_tile<WgmmaTiles>(head_dim, tile, [&]<int HeadDim, class Shape>() {
      if constexpr (wgmma_fits_registers(HeadDim, Shape::kv)) {
        using Kernel = FlashWgmma<bf16, HeadDim, Shape::q, Shape::kv>;
        needs = {Kernel::threads, 65536 / Kernel::threads / 8 * 8, Kernel::shared_bytes};
      }
    });
  }
  return needs;
}

/// Blocks that a multiprocessor holds at once. Registers are given to warps by 256 and shared
/// memory to blocks by 128 bytes, of which each block costs 1 KiB more.
constexpr int resident_blocks(const DevicePreset& device, const BlockNeeds& block) {
  const int warps = (block.threads + 31) / 32;
  const int registers_of_warp = (block.registers * 32 + 255) / 256 * 256;
  const int shared = (block.shared_bytes + 1024 + 127) / 128 * 128;
  return std::min({device.blocks, device.threads / (32 * warps),
                   device.registers / 4 / registers_of_warp * 4 / warps,
                   device.shared_bytes / shared});
}

}  // namespace impl

/// ok, or skipped with the reason why the variant cannot run this tile on the device.
inline Status preset_supports(const DevicePreset& device, std::string_view variant,
                              std::int64_t head_dim, Tile tile, Pass pass = Pass::forward) {
  const std::string what = std::string(variant) + " with tile " + impl::names({tile}) +
                           " at head_dim " + std::to_string(head_dim);
  const auto needs = impl::block_needs(variant, head_dim, tile, pass);
  if (!needs) return Status::skipped(what + " is not built");
  if (variant == "flash_wgmma" ? device.capability / 10 != 9 : device.capability < 80) {
    return Status::skipped(std::string(variant) + " does not run on compute capability " +
                           std::to_string(device.capability / 10) + "." +
                           std::to_string(device.capability % 10));
  }
  if (needs->shared_bytes > device.block_shared_bytes) {
    return Status::skipped(what + " needs " + std::to_string(needs->shared_bytes) +
                           " bytes of shared memory, a block of an " + std::string(device.title) +
                           " can have " + std::to_string(device.block_shared_bytes));
  }
  return Status::ok();
}

/// The share of the resident threads of the device that the variant reaches with the tile, by its
/// registers and shared memory; 0 where preset_supports() refuses.
inline double preset_occupancy(const DevicePreset& device, std::string_view variant,
                               std::int64_t head_dim, Tile tile, Pass pass = Pass::forward) {
  if (!preset_supports(device, variant, head_dim, tile, pass).is_ok()) return 0;
  const auto needs = *impl::block_needs(variant, head_dim, tile, pass);
  return static_cast<double>(impl::resident_blocks(device, needs) * needs.threads) / device.threads;
}

/// The tile of the variant with the highest occupancy on the device, among equals the one with the
/// most scores; nothing where the device can run none.
inline std::optional<Tile> preset_tile(const DevicePreset& device, std::string_view variant,
                                       std::int64_t head_dim, Pass pass = Pass::forward) {
  std::optional<Tile> best;
  double best_occupancy = 0;
  for (const Tile tile : impl::tensor_core_tiles(variant, pass)) {
    const double occupancy = preset_occupancy(device, variant, head_dim, tile, pass);
    const bool larger = best && tile.q * tile.kv > best->q * best->kv;
    if (occupancy > best_occupancy || (occupancy > 0 && occupancy == best_occupancy && larger)) {
      best = tile;
      best_occupancy = occupancy;
    }
  }
  return best;
}

}  // namespace katt::attention
