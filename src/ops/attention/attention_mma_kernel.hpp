#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/attention_fragments.hpp"
#include "tile/fragments.hpp"

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
/// A block is what the kernel knows of the machine: tile::MmaBlock on a device, the emulator of the
/// tests on the host.
namespace katt::attention::impl {

template <class T, int HeadDim, int TileQ, int TileKv>
struct FlashMma {
  static_assert(sizeof(T) == 2 && HeadDim % tile::panel_columns == 0);
  static_assert(TileQ % 16 == 0 && TileKv % 16 == 0);

  static constexpr int threads = TileQ / 16 * tile::warp_size;
  static constexpr int shared_bytes = (TileQ + 2 * TileKv) * HeadDim * 2;
  static constexpr int blocks_per_multiprocessor = 1;

  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* lse;
  std::int64_t lse_stride_batch, lse_stride_head, lse_stride_seq;
  Masks masks;
  Bias<T> bias;
  float scale;
  float softcap;
  int head_dim;
  std::int64_t kv_heads;
  std::int64_t group;      ///< query heads per K/V head
  std::int64_t rows;       ///< packed query rows per K/V head
  std::int64_t row_tiles;  ///< tiles of packed rows per K/V head
  std::int64_t blocks;     ///< thread blocks of the grid

  explicit FlashMma(const ForwardArgs& args)
      : q(args.q),
        k(args.k),
        v(args.v),
        out(args.out),
        lse(static_cast<float*>(args.lse.data)),
        lse_stride_batch(args.lse.stride[0]),
        lse_stride_head(args.lse.stride[1]),
        lse_stride_seq(args.lse.stride[2]),
        masks(args),
        bias(args.mask.bias),
        scale(args.scale),
        softcap(args.mask.softcap),
        head_dim(static_cast<int>(args.head_dim())),
        kv_heads(args.kv_heads()),
        group(args.heads() / args.kv_heads()),
        rows(args.seq_q() * group),
        row_tiles((rows + TileQ - 1) / TileQ),
        blocks(args.batch() * kv_heads * row_tiles) {}

  /// Block `item` of the grid: head-major, within a head from the last row tile, which sees the
  /// most keys under a causal mask, to the first.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t item) const {
    const std::int64_t row_begin = (row_tiles - 1 - item % row_tiles) * TileQ;
    const std::int64_t kv_head = item / row_tiles % kv_heads;
    const std::int64_t b = item / row_tiles / kv_heads;
    const int row_count = static_cast<int>(Kokkos::min<std::int64_t>(TileQ, rows - row_begin));
    const PackedRows packed{kv_head, group, row_begin};
    const ScoreRule<T> rule{masks.of(b), bias, softcap};

    const T* const keys = k.row(b, kv_head, 0);
    const T* const values = v.row(b, kv_head, 0);

    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned first_row = block.thread() / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);

    FragmentSoftmax<T> softmax(rule, scale, b, packed, row, row_count, lane);
    float o[HeadDim / 8][4];
    KATT_UNROLL for (int n = 0; n < HeadDim / 8; ++n) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) o[n][i] = 0.0F;
    }

    LiveTiles tiles(rule.mask, packed.query(0), packed.query(row_count - 1), TileKv);
    if (tiles.valid()) {
      load_queries(block, row_count, b, packed);
      load_keys(block, k_tile, keys, k.stride_seq, tiles);
      block.commit();
    }
    while (tiles.valid()) {
      block.template wait<0>();
      block.barrier();  // K is here for all threads, and none reads V any more
      load_keys(block, v_tile, values, v.stride_seq, tiles);
      block.commit();

      float s[TileKv / 8][4];
      scores(block, s, first_row, lane);
      softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
      float rescale[2];
      softmax.probabilities(block, s, rescale);

      block.template wait<0>();
      block.barrier();  // V is here for all threads, and none reads K any more
      tiles.next();
      if (tiles.valid()) {
        load_keys(block, k_tile, keys, k.stride_seq, tiles);
        block.commit();
      }
      KATT_UNROLL for (int n = 0; n < HeadDim / 8; ++n) {
        KATT_UNROLL for (int i = 0; i < 4; ++i) o[n][i] *= rescale[i / 2];
      }
      accumulate(block, o, s, lane);
    }

    softmax.finish(block);
    write(block, o, softmax, first_row, row_count, b, packed, lane);
  }

 private:
  static constexpr unsigned q_tile = 0;  ///< where the tiles begin in shared memory, in bytes
  static constexpr unsigned k_tile = TileQ * HeadDim * 2;
  static constexpr unsigned v_tile = k_tile + TileKv * HeadDim * 2;
  static constexpr int chunks = HeadDim / 8;          ///< of 16 bytes in a row
  static constexpr int load_step = threads / chunks;  ///< rows that all threads load at once

  /// Begins to copy rows into a tile of `Rows`; rows from `live` on, and columns from head_dim on,
  /// are zero. row_pointer(r) is asked for the rows of this thread, in order.
  template <int Rows, class Block, class RowPointer>
  KOKKOS_INLINE_FUNCTION void load(Block& block, unsigned target, int live,
                                   const RowPointer& row_pointer) const {
    const unsigned column = block.thread() % chunks * 8;
    const unsigned first = block.thread() / chunks;
    static_assert(threads % chunks == 0 && Rows % load_step == 0);
    const int count = static_cast<int>(column) < head_dim ? live : 0;
    KATT_UNROLL_4 for (int i = 0; i < Rows / load_step; ++i) {
      const int r = static_cast<int>(first) + i * load_step;
      const T* source = row_pointer(r);
      block.copy_async(target + tile::swizzled(Rows, first + i * load_step, column),
                       r < count ? source + column : q.data, r < count);
    }
  }

  /// The query rows.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void load_queries(Block& block, int row_count, std::int64_t b,
                                           const PackedRows& packed) const {
    load<TileQ>(block, q_tile, row_count, [&](int r) {
      return r < row_count ? q.row(b, packed.head(r), packed.query(r)) : q.data;
    });
  }

  /// The rows of K or V that belong to the tile of `tiles`. The address steps from row to row: the
  /// multiples of the stride would fill registers.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void load_keys(Block& block, unsigned target, const T* first_row,
                                        std::int64_t stride, const LiveTiles& tiles) const {
    const T* source = first_row + (tiles.key() + block.thread() / chunks) * stride;
    load<TileKv>(block, target, tiles.columns(), [&](int) {
      const T* row = source;
      source += load_step * stride;
      return row;
    });
  }

  /// S = Q·Kᵀ for the sixteen rows of the warp.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void scores(Block& block, float (&s)[TileKv / 8][4],
                                            unsigned first_row, unsigned lane) {
    KATT_UNROLL for (int n = 0; n < TileKv / 8; ++n) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) s[n][i] = 0.0F;
    }
    const tile::SwizzledLane queries(q_tile + first_row * 128, tile::a_source(lane));
    const tile::SwizzledLane keys(k_tile, tile::b_source_by_columns(lane));
    KATT_UNROLL for (int d = 0; d < HeadDim; d += 16) {
      std::uint32_t a[4];
      block.load_matrices(a, queries.at(TileQ, 0, d));
      KATT_UNROLL for (int j = 0; j < TileKv; j += 16) {
        std::uint32_t pair[4];
        block.load_matrices(pair, keys.at(TileKv, j, d));
        block.template mma<T>(s[j / 8], a, pair[0], pair[1]);
        block.template mma<T>(s[j / 8 + 1], a, pair[2], pair[3]);
      }
    }
  }

  /// O += P·V. The accumulators of P in two neighbouring blocks of 16 × 8 are, rounded, an operand
  /// A of 16 × 16.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void accumulate(Block& block, float (&o)[HeadDim / 8][4],
                                                const float (&p)[TileKv / 8][4], unsigned lane) {
    const tile::SwizzledLane values(v_tile, tile::b_source_by_rows(lane));
    KATT_UNROLL for (int j = 0; j < TileKv; j += 16) {
      std::uint32_t a[4];
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        const float(&block_p)[4] = p[j / 8 + i / 2];
        a[i] = Block::template pack<T>(block_p[i % 2 * 2], block_p[i % 2 * 2 + 1]);
      }
      KATT_UNROLL for (int d = 0; d < HeadDim; d += 16) {
        std::uint32_t pair[4];
        block.load_matrices_transposed(pair, values.at(TileKv, j, d));
        block.template mma<T>(o[d / 8], a, pair[0], pair[1]);
        block.template mma<T>(o[d / 8 + 1], a, pair[2], pair[3]);
      }
    }
  }

  /// O / l and lse. O goes through the warp's rows of the query tile, which nobody reads any more,
  /// so that whole chunks of 16 bytes are written.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void write(Block& block, const float (&o)[HeadDim / 8][4],
                                    const FragmentSoftmax<T>& softmax, unsigned first_row,
                                    int row_count, std::int64_t b, const PackedRows& packed,
                                    unsigned lane) const {
    block.sync_warp();
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      const tile::Position at = tile::accumulator_position(lane, 2 * half);
      const float factor = softmax.inverse_sum(half);
      KATT_UNROLL for (int n = 0; n < HeadDim / 8; ++n) {
        block.store_pair(
            q_tile + tile::swizzled(TileQ, first_row + at.row, 8 * n + at.column),
            Block::template pack<T>(o[n][2 * half] * factor, o[n][2 * half + 1] * factor));
      }
      const int r = static_cast<int>(first_row + at.row);
      if (lse != nullptr && lane % 4 == 0 && r < row_count) {
        lse[b * lse_stride_batch + packed.head(r) * lse_stride_head +
            packed.query(r) * lse_stride_seq] = softmax.log_sum_exp(half);
      }
    }
    block.sync_warp();
    const int live_rows = Kokkos::min(16, row_count - static_cast<int>(first_row));
    for (int i = static_cast<int>(lane); i < live_rows * chunks;
         i += static_cast<int>(tile::warp_size)) {
      const int r = static_cast<int>(first_row) + i / chunks;
      const int column = i % chunks * 8;
      if (column < head_dim) {
        block.copy_chunk(out.row(b, packed.head(r), packed.query(r)) + column,
                         q_tile + tile::swizzled(TileQ, r, column));
      }
    }
  }
};

}  // namespace katt::attention::impl
