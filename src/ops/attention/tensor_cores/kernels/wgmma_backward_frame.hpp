#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/gpus.hpp"
#include "ops/attention/tensor_cores/kernels/backward_frame.hpp"
#include "ops/attention/tensor_cores/kernels/longest_first.hpp"
#include "ops/attention/tensor_cores/kernels/turns.hpp"
#include "tile/cuda/fragments.hpp"

namespace katt::attention::impl {

/// Base of the two kernels of wgmma_backward_kernel.hpp: stages, barriers, turns, products.
/// `Groups`: computing warpgroups. `Rows`: of each of the two tiles of a stage. `StageExtra`: further
/// bytes of a stage. `OwnTiles`: that the block holds throughout.
template <class Frame_, int Groups, int HeadDim, int Rows, int StageExtra, int OwnTiles = 2>
struct WgmmaBackward : Frame_ {
  using Frame_::Frame_;
  static constexpr int group_threads = 128;  ///< of a warpgroup
  static constexpr int groups = Groups;
  static constexpr int threads = (1 + Groups) * group_threads;
  static constexpr int blocks_per_multiprocessor = 1;
  // The threads start with 65,536 / threads registers each, which are redistributed.
  static constexpr int loading_registers = Groups == 2 ? 40 : 32;
  static constexpr int computing_registers = Groups == 2 ? 232 : 160;

  static constexpr int own_bytes = 64 * Groups * HeadDim * 2;  ///< of one of the block's own tiles
  static constexpr int tile_bytes = Rows * HeadDim * 2;        ///< of one of a stage's tiles
  static constexpr int stage_bytes = 2 * tile_bytes + (StageExtra + 1023) / 1024 * 1024;
  static constexpr int fitting_stages =
      (find_gpu("h100")->block_shared_bytes - OwnTiles * own_bytes - 256) / stage_bytes;
  static constexpr int stages = Kokkos::min(Kokkos::max(fitting_stages, 2), 4);
  static constexpr int barriers = OwnTiles * own_bytes + stages * stage_bytes;
  static constexpr int shared_bytes = barriers + 2 * stages * 8;

  // Offsets in shared memory, in bytes.
  KOKKOS_INLINE_FUNCTION static constexpr unsigned own_tile(unsigned which) {
    return which * own_bytes;
  }
  KOKKOS_INLINE_FUNCTION static constexpr unsigned stage_tile(unsigned which, unsigned n) {
    return OwnTiles * own_bytes + n % stages * stage_bytes + which * tile_bytes;
  }
  KOKKOS_INLINE_FUNCTION static constexpr unsigned full(unsigned n) {
    return barriers + n % stages * 8;
  }
  KOKKOS_INLINE_FUNCTION static constexpr unsigned empty(unsigned n) {
    return full(n) + stages * 8;
  }

  /// Pair `index` of batch entries × K/V heads. It divides: with dividers the loading warps spill.
  KOKKOS_INLINE_FUNCTION typename Frame_::HeadPair head_pair(unsigned index) const {
    const auto kv_heads = static_cast<unsigned>(this->kv_heads);
    return {index / kv_heads, index % kv_heads};
  }

  template <class Block>
  KOKKOS_INLINE_FUNCTION static void init(Block& block) {
    if (block.thread() == 0) {
      for (unsigned n = 0; n < stages; ++n) {
        block.barrier_init(full(n), group_threads);
        block.barrier_init(empty(n), Groups * 4);  // one lane a warp
      }
    }
    block.barrier();
  }

  /// The loading warpgroup: copy(n) begins the copies of tile n. A computing warp frees a stage after
  /// it has begun the products of the next one: with two stages a tile is announced before the copy of
  /// the next begins, with more after that.
  template <class Block, class Tiles, class Copy>
  KOKKOS_INLINE_FUNCTION static void load(Block& block, Tiles& tiles, const Copy& copy) {
    constexpr unsigned on_their_way = stages > 2 ? 1 : 0;
    const auto announce = [&](unsigned n) {
      block.fence_async_proxy();
      block.barrier_arrive(full(n));
    };
    unsigned n = 0;
    for (; tiles.valid(); tiles.next(), ++n) {
      if (n >= stages) block.barrier_wait(empty(n), (n / stages - 1) % 2);
      copy(n);
      block.commit();
      if (n >= on_their_way) {
        block.template wait<on_their_way>();
        announce(n - on_their_way);
      }
    }
    if (n == 0 || on_their_way == 0) return;
    block.template wait<0>();
    announce(n - 1);
  }

  template <class Block>
  KOKKOS_INLINE_FUNCTION static void wait_full(Block& block, unsigned n) {
    block.barrier_wait(full(n), n / stages % 2);
  }

  /// The computing warpgroups take turns from tile 1 on; a named barrier of each group comes before.
  using GroupTurns = Turns<Groups, 1 + Groups>;

  /// Begins product = A·Bᵀ for the 64 rows of a group of the block's own tile A, `which`, and tile B of
  /// stage n.
  template <class T, class Block, int N>
  KOKKOS_INLINE_FUNCTION static void begin_scores(Block& block, float (&product)[N][4],
                                                  unsigned group_row, unsigned which, unsigned n) {
    const unsigned row = Block::computed_here(group_row);
    block.wgmma_fence();
    KATT_UNROLL for (int d = 0; d < HeadDim; d += 16) {
      block.template wgmma<T, 8 * N>(
          product, tile::row_major_descriptor(own_tile(which), 64 * Groups, row, d),
          tile::row_major_descriptor(stage_tile(which, n), Rows, 0, d), d > 0);
    }
  }

  /// Begins gradient += A·B with A in registers and B tile `which` of stage n.
  template <class T, class Block, int N>
  KOKKOS_INLINE_FUNCTION static void begin_gradient(Block& block, float (&gradient)[HeadDim / 8][4],
                                                    const std::uint32_t (&a)[N][4], unsigned which,
                                                    unsigned n) {
    block.wgmma_fence();
    KATT_UNROLL for (int j = 0; j < N; ++j) {
      block.template wgmma<T, HeadDim, 0>(
          gradient, a[j], tile::column_major_descriptor(stage_tile(which, n), Rows, 16 * j, 0),
          true);
    }
  }

  template <class T, class Block, int N>
  KOKKOS_INLINE_FUNCTION static void round(const Block&, std::uint32_t (&to)[N][4],
                                           const float (&from)[2 * N][4]) {
    KATT_UNROLL for (int j = 0; j < N; ++j) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) to[j][i] = operand_a<T, Block>(from, j, i);
    }
  }
};

}  // namespace katt::attention::impl
