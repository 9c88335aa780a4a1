#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "op/variants.hpp"
#include "ops/attention/gpus.hpp"
#include "ops/attention/tensor_cores/kernels/backward_statistics.hpp"
#include "ops/attention/tensor_cores/kernels/mma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/mma_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/wgmma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/wgmma_kernel.hpp"
#include "ops/attention/tensor_cores/registers.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"

/// Tiles of the tensor-core variants by the name of a GPU: the tiles whose threads, registers and
/// shared memory let the most warps be resident on a multiprocessor. They are computed, not
/// measured: a tuning file of a machine comes before them.
namespace katt::attention::impl {

/// Registers of a thread: a number for all architectures, or those of a kernel of
/// compiled_registers, which vary; of a kernel that is not there the most that a thread can have.
class Registers {
 public:
  constexpr Registers(int all) { registers_.fill(all); }
  constexpr Registers(std::string_view kernel, int head_dim, int tile_q, int tile_kv) {
    registers_.fill(255);
    for (const CompiledRegisters& row : compiled_registers) {
      if (row.kernel == kernel && row.head_dim == head_dim && row.tile_q == tile_q &&
          row.tile_kv == tile_kv) {
        registers_ = row.registers;
      }
    }
  }

  /// As compiled for the latest known architecture that is not later than the capability.
  constexpr int on(int capability) const {
    std::size_t i = register_capabilities.size() - 1;
    while (i > 0 && register_capabilities[i] > capability) --i;
    return registers_[i];
  }

 private:
  std::array<int, register_capabilities.size()> registers_{};
};

/// The resources of a block of a kernel.
struct BlockNeeds {
  int threads;
  Registers registers;
  int shared_bytes;
};

/// A variant on tensor cores as GPUs see it.
struct TensorCoreVariant {
  std::string_view name;
  std::vector<Tile> (*tiles)();
  bool (*runs_on)(int capability);
  /// The resources of its kernel, or nothing when it is not built; of two kernels the larger shared
  /// memory. head_dim need not be one of the padded ones.
  std::optional<BlockNeeds> (*needs)(std::int64_t head_dim, Tile tile);
};

inline std::optional<BlockNeeds> mma_needs(std::int64_t head_dim, Tile tile) {
  std::optional<BlockNeeds> needs;
  visit_tensor_core_tile<MmaTiles, mma_head_dims>(head_dim, tile, [&]<int HeadDim, class Shape>() {
    using Kernel = FlashMma<bf16, HeadDim, Shape::q, Shape::kv>;
    needs = {Kernel::threads, {"FlashMma", HeadDim, Shape::q, Shape::kv}, Kernel::shared_bytes};
  });
  return needs;
}

inline std::optional<BlockNeeds> mma_backward_needs(std::int64_t head_dim, Tile tile) {
  std::optional<BlockNeeds> needs;
  if (!tensor_core_backward_takes(head_dim).is_ok()) return needs;
  visit_backward_tile(head_dim, tile, [&]<int HeadDim, class Shape>() {
    using Keys = FlashMmaBackwardKv<bf16, HeadDim, Shape::q, Shape::kv>;
    using Queries = FlashMmaBackwardQ<bf16, HeadDim, backward_block_rows, Shape::kv>;
    needs = {Keys::threads,
             {"FlashMmaBackwardKv", HeadDim, Shape::q, Shape::kv},
             std::max(Keys::shared_bytes, Queries::shared_bytes)};
  });
  return needs;
}

inline std::optional<BlockNeeds> wgmma_needs(std::int64_t head_dim, Tile tile) {
  std::optional<BlockNeeds> needs;
  visit_tensor_core_tile<WgmmaTiles, wgmma_head_dims>(
      head_dim, tile, [&]<int HeadDim, class Shape>() {
        if constexpr (wgmma_is_built(HeadDim, Shape::tile)) {
          using Kernel = FlashWgmma<bf16, HeadDim, Shape::q, Shape::kv>;
          needs = {Kernel::threads, 65536 / Kernel::threads / 8 * 8, Kernel::shared_bytes};
        }
      });
  return needs;
}

/// Calls f.operator()<Statistics, Queries, Keys...>() for the kernels of flash_wgmma's backward pass
/// with a tile; false where the list lacks the tile.
template <class T, class Rule, class F>
bool visit_wgmma_backward(std::int64_t head_dim, Tile tile, F&& f) {
  return WgmmaBackwardTiles::visit(tile, [&]<class Shape>() {
    visit_head_dim<wgmma_backward_head_dims>(head_dim, [&]<int HeadDim>() {
      constexpr Tile of_queries = wgmma_backward_q_tile(HeadDim);
      using Statistics = BackwardStatistics<T, HeadDim, Rule>;
      using Queries = FlashWgmmaBackwardQ<T, HeadDim, of_queries.q, of_queries.kv, Rule>;
      if constexpr (HeadDim <= 128) {
        using Keys = FlashWgmmaBackwardKv<T, HeadDim, Shape::q, Shape::kv, Rule>;
        f.template operator()<Statistics, Queries, Keys>();
      } else {
        using V = FlashWgmmaBackwardKv<T, HeadDim, Shape::q, Shape::kv, Rule, KeyGradients::v>;
        using K = FlashWgmmaBackwardKv<T, HeadDim, Shape::q / 2, Shape::kv, Rule, KeyGradients::k>;
        f.template operator()<Statistics, Queries, V, K>();
      }
    });
  });
}

inline std::optional<BlockNeeds> wgmma_backward_needs(std::int64_t head_dim, Tile tile) {
  std::optional<BlockNeeds> needs;
  visit_wgmma_backward<bf16, NoRule>(
      head_dim, tile, [&]<class Statistics, class Queries, class... Keys>() {
        needs = {Queries::threads, 65536 / Queries::threads / 8 * 8,
                 std::max({Queries::shared_bytes, Keys::shared_bytes...})};
      });
  return needs;
}

inline bool ampere_and_later(int capability) { return capability >= 80; }
inline bool hopper(int capability) { return capability / 10 == 9; }

inline constexpr TensorCoreVariant mma_on_gpus{"flash_mma", MmaTiles::all, ampere_and_later,
                                               mma_needs};
inline constexpr TensorCoreVariant mma_backward_on_gpus{"flash_mma", MmaBackwardTiles::all,
                                                        ampere_and_later, mma_backward_needs};
inline constexpr TensorCoreVariant wgmma_on_gpus{"flash_wgmma", WgmmaTiles::all, hopper,
                                                 wgmma_needs};
inline constexpr TensorCoreVariant wgmma_backward_on_gpus{"flash_wgmma", WgmmaBackwardTiles::all,
                                                          hopper, wgmma_backward_needs};

/// Blocks that a multiprocessor holds at once. Registers are given to warps by 256 and shared
/// memory to blocks by 128 bytes, of which each block costs 1 KiB more.
constexpr int resident_blocks(const Gpu& gpu, const BlockNeeds& block) {
  const int warps = (block.threads + 31) / 32;
  const int registers_of_warp = (block.registers.on(gpu.capability) * 32 + 255) / 256 * 256;
  const int shared = (block.shared_bytes + 1024 + 127) / 128 * 128;
  return std::min({gpu.blocks, gpu.threads / (32 * warps),
                   gpu.registers / 4 / registers_of_warp * 4 / warps, gpu.shared_bytes / shared});
}

/// ok, or skipped with the reason why the variant cannot run this tile on the GPU.
inline Status gpu_supports(const Gpu& gpu, const TensorCoreVariant& variant, std::int64_t head_dim,
                           Tile tile) {
  const std::string name(variant.name);
  const std::string what =
      name + " with tile " + names({tile}) + " at head_dim " + std::to_string(head_dim);
  const auto needs = variant.needs(head_dim, tile);
  if (!needs) return Status::skipped(what + " is not built");
  if (!variant.runs_on(gpu.capability)) {
    return Status::skipped(name + " does not run on compute capability " +
                           std::to_string(gpu.capability / 10) + "." +
                           std::to_string(gpu.capability % 10));
  }
  if (needs->shared_bytes > gpu.block_shared_bytes) {
    return Status::skipped(what + " needs " + std::to_string(needs->shared_bytes) +
                           " bytes of shared memory, a block of an " + std::string(gpu.title) +
                           " can have " + std::to_string(gpu.block_shared_bytes));
  }
  return Status::ok();
}

/// The share of the resident threads of the GPU that the variant reaches with the tile, by its
/// registers and shared memory; 0 when gpu_supports() refuses.
inline double occupancy(const Gpu& gpu, const TensorCoreVariant& variant, std::int64_t head_dim,
                        Tile tile) {
  if (!gpu_supports(gpu, variant, head_dim, tile).is_ok()) return 0;
  const auto needs = *variant.needs(head_dim, tile);
  return static_cast<double>(resident_blocks(gpu, needs) * needs.threads) / gpu.threads;
}

/// The tile of the variant with the highest occupancy on the GPU, among equals the one with the
/// most scores; nothing when the GPU can run none.
inline std::optional<Tile> tile_for(const Gpu& gpu, const TensorCoreVariant& variant,
                                    std::int64_t head_dim) {
  std::optional<Tile> best;
  double best_occupancy = 0;
  for (const Tile tile : variant.tiles()) {
    const double reached = occupancy(gpu, variant, head_dim, tile);
    const bool larger = best && tile.q * tile.kv > best->q * best->kv;
    if (reached > best_occupancy || (reached > 0 && reached == best_occupancy && larger)) {
      best = tile;
      best_occupancy = reached;
    }
  }
  return best;
}

/// The presets of the variant: a tile for every GPU.
template <class Exec, class Args>
std::vector<Preset<Exec, Args>> tensor_core_presets(const TensorCoreVariant& variant) {
  std::vector<Preset<Exec, Args>> presets;
  for (const Gpu& gpu : gpus) {
    presets.push_back(
        {.name = std::string(gpu.name),
         .setting =
             [gpu, variant](const Args& args) {
               return tile_for(gpu, variant, args.head_dim()).value_or(variant.tiles().front());
             },
         .supports =
             [gpu, variant](const Args& args) {
               const auto tile = tile_for(gpu, variant, args.head_dim());
               return tile ? Status::ok()
                           : gpu_supports(gpu, variant, args.head_dim(), variant.tiles().front());
             }});
  }
  return presets;
}

}  // namespace katt::attention::impl
