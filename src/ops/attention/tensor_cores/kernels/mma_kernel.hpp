#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/tensor_cores/kernels/frame.hpp"
#include "tile/cuda/fragments.hpp"

/// Flash attention, forward, with warp-wide matrix instructions (Dao 2023, FlashAttention-2,
/// arXiv:2307.08691): Algorithm 1 with the rows of a query tile divided among the warps, sixteen
/// each, so that softmax and O never leave a warp's registers.
///
///   for every (batch, kv head, tile of query rows), one block each:
///     for every live tile of keys:
///       S = Q·Kᵀ      while V is on its way
///       mask, softmax: P in registers, where S was
///       O = O·α + P·V  while the next K is on its way
///     out = O / l
///
/// A block is the kernel's only view of the machine: tile::MmaBlock on a device, the emulator of
/// the tests on the host.
namespace katt::attention::impl {

template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule>
struct FlashMma : TensorCoreForward<T, HeadDim, TileQ, Rule> {
  static_assert(TileKv % 16 == 0);
  using Frame = TensorCoreForward<T, HeadDim, TileQ, Rule>;
  using Frame::Frame;

  static constexpr int threads = TileQ / 16 * tile::warp_size;
  static constexpr int shared_bytes = (TileQ + 2 * TileKv) * HeadDim * 2;
  static constexpr int blocks_per_multiprocessor = 1;

  /// Block `index` of the grid.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    const typename Frame::QueryTile item = this->query_tile(index);
    const EntryScores<T, Rule> scores = this->scores.of(item.batch);
    const unsigned thread = block.thread();
    const unsigned lane = thread % tile::warp_size;
    const unsigned first_row = thread / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);

    typename Frame::Softmax softmax(scores, item.packed, row, item.rows, lane);
    float o[HeadDim / 8][4];
    clear(o);

    LiveKeys<int> tiles(scores.mask, item.first(), item.last(), TileKv);
    if (tiles.valid()) {
      this->template load_queries<threads>(block, thread, q_tile, item);
      this->template load_keys<threads, TileKv>(block, thread, k_tile, this->k, item, tiles);
      block.commit();
    }
    while (tiles.valid()) {
      block.template wait<0>();
      block.barrier();  // K is here for all threads, and none reads V any more
      this->template load_keys<threads, TileKv>(block, thread, v_tile, this->v, item, tiles);
      block.commit();

      float s[TileKv / 8][4];
      multiply_by_rows<T, HeadDim, TileQ>(block, s, q_tile, first_row, k_tile, lane);
      softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
      float rescale[2];
      softmax.probabilities(block, s, rescale);

      block.template wait<0>();
      block.barrier();  // V is here for all threads, and none reads K any more
      tiles.next();
      if (tiles.valid()) {
        this->template load_keys<threads, TileKv>(block, thread, k_tile, this->k, item, tiles);
        block.commit();
      }
      multiply_rows(o, rescale);
      accumulate<T, HeadDim>(block, o, s, v_tile, lane);
    }

    softmax.finish(block);
    this->write(block, o, softmax, q_tile, first_row, item);
  }

 private:
  static constexpr unsigned q_tile = 0;  ///< offsets of the tiles in shared memory, in bytes
  static constexpr unsigned k_tile = TileQ * HeadDim * 2;
  static constexpr unsigned v_tile = k_tile + TileKv * HeadDim * 2;
};

}  // namespace katt::attention::impl
