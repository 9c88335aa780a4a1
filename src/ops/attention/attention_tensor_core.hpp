#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/attention_fragments.hpp"
#include "tile/fragments.hpp"

namespace katt::attention::impl {

/// The frame of a tensor-core kernel: arguments, work items, and the ways of rows between global
/// and shared memory. Tiles of queries, keys and values lie in shared memory as tile::swizzled()
/// says, head_dim padded with zeros to HeadDim.
template <class T, int HeadDim, int TileQ>
struct TensorCoreForward {
  static_assert(sizeof(T) == 2 && HeadDim % tile::panel_columns == 0 && TileQ % 16 == 0);

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

  explicit TensorCoreForward(const ForwardArgs& args)
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

  /// The tile of packed query rows of one block of the grid.
  struct Item {
    std::int64_t batch;
    PackedRows packed;
    int rows;  ///< at most TileQ

    KOKKOS_INLINE_FUNCTION std::int64_t first_query() const { return packed.query(0); }
    KOKKOS_INLINE_FUNCTION std::int64_t last_query() const { return packed.query(rows - 1); }
  };

  /// Head-major, within a head from the last row tile, which sees the most keys under a causal
  /// mask, to the first.
  KOKKOS_INLINE_FUNCTION Item item(std::int64_t index) const {
    const std::int64_t begin = (row_tiles - 1 - index % row_tiles) * TileQ;
    return {index / row_tiles / kv_heads,
            {index / row_tiles % kv_heads, group, begin},
            static_cast<int>(Kokkos::min<std::int64_t>(TileQ, rows - begin))};
  }
  KOKKOS_INLINE_FUNCTION ScoreRule<T> rule(const Item& item) const {
    return {masks.of(item.batch), bias, softcap};
  }

  static constexpr int chunks = HeadDim / 8;  ///< of 16 bytes in a row

  /// Begins to copy rows into a tile of `Rows`, by `Threads` threads of which this is `thread`;
  /// rows from `live` on, and columns from head_dim on, are zero. row_pointer(r) is asked for the
  /// rows of this thread, in order.
  template <int Threads, int Rows, class Block, class RowPointer>
  KOKKOS_INLINE_FUNCTION void load(Block& block, unsigned thread, unsigned target, int live,
                                   const RowPointer& row_pointer) const {
    constexpr int step = Threads / chunks;  // rows that all threads load at once
    static_assert(Threads % chunks == 0 && Rows % step == 0);
    const unsigned column = thread % chunks * 8;
    const unsigned first = thread / chunks;
    const int count = static_cast<int>(column) < head_dim ? live : 0;
    KATT_UNROLL_4 for (int i = 0; i < Rows / step; ++i) {
      const int r = static_cast<int>(first) + i * step;
      const T* source = row_pointer(r);
      block.copy_async(target + tile::swizzled(Rows, first + i * step, column),
                       r < count ? source + column : q.data, r < count);
    }
  }

  /// The query rows.
  template <int Threads, class Block>
  KOKKOS_INLINE_FUNCTION void load_queries(Block& block, unsigned thread, unsigned target,
                                           const Item& item) const {
    load<Threads, TileQ>(block, thread, target, item.rows, [&](int r) {
      return r < item.rows ? q.row(item.batch, item.packed.head(r), item.packed.query(r)) : q.data;
    });
  }

  /// The rows of K or V that belong to the tile of `tiles`. The address steps from row to row: the
  /// multiples of the stride would fill registers.
  template <int Threads, int TileKv, class Block>
  KOKKOS_INLINE_FUNCTION void load_keys(Block& block, unsigned thread, unsigned target,
                                        const HeadRows<const T>& tensor, const Item& item,
                                        const LiveTiles& tiles) const {
    const std::int64_t stride = tensor.stride_seq;
    const T* source = tensor.row(item.batch, item.packed.kv_head, tiles.key() + thread / chunks);
    load<Threads, TileKv>(block, thread, target, tiles.columns(), [&](int) {
      const T* row = source;
      source += Threads / chunks * stride;
      return row;
    });
  }

  /// O / l and lse for the sixteen rows of a warp, from `first_row` of the tile on. O goes through
  /// the warp's rows of the query tile at byte `q_tile`, which must not be read any more, so that
  /// whole chunks of 16 bytes are written.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void write(Block& block, const float (&o)[HeadDim / 8][4],
                                    const FragmentSoftmax<T>& softmax, unsigned q_tile,
                                    unsigned first_row, const Item& item) const {
    const unsigned lane = block.thread() % tile::warp_size;
    const auto index = [&](int r) {
      return item.batch * lse_stride_batch + item.packed.head(r) * lse_stride_head +
             item.packed.query(r) * lse_stride_seq;
    };
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
      if (lse != nullptr && lane % 4 == 0 && r < item.rows) {
        lse[index(r)] = softmax.log_sum_exp(half);
      }
    }
    block.sync_warp();
    const int live_rows = Kokkos::min(16, item.rows - static_cast<int>(first_row));
    for (int i = static_cast<int>(lane); i < live_rows * chunks;
         i += static_cast<int>(tile::warp_size)) {
      const int r = static_cast<int>(first_row) + i / chunks;
      const int column = i % chunks * 8;
      if (column < head_dim) {
        block.copy_chunk(out.row(item.batch, item.packed.head(r), item.packed.query(r)) + column,
                         q_tile + tile::swizzled(TileQ, r, column));
      }
    }
  }
};

/// O = 0 or O = O·α.
template <int N>
KOKKOS_INLINE_FUNCTION void clear(float (&o)[N][4]) {
  KATT_UNROLL for (int n = 0; n < N; ++n) {
    KATT_UNROLL for (int i = 0; i < 4; ++i) o[n][i] = 0.0F;
  }
}
template <int N>
KOKKOS_INLINE_FUNCTION void multiply_rows(float (&o)[N][4], const float (&factor)[2]) {
  KATT_UNROLL for (int n = 0; n < N; ++n) {
    KATT_UNROLL for (int i = 0; i < 4; ++i) o[n][i] *= factor[i / 2];
  }
}

/// Register i of the operand A, 16 rows × 16 keys from key 16·j on, out of probabilities: two
/// neighbouring blocks of 16 × 8 accumulators are, rounded, an operand of 16 × 16.
template <class T, class Block, int N>
KOKKOS_INLINE_FUNCTION std::uint32_t operand_a(const float (&p)[N][4], int j, int i) {
  const float(&block_p)[4] = p[2 * j + i / 2];
  return Block::template pack<T>(block_p[i % 2 * 2], block_p[i % 2 * 2 + 1]);
}

}  // namespace katt::attention::impl
