#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/tensor_cores/kernels/fragments.hpp"
#include "tile/cuda/fragments.hpp"
#include "tile/divider.hpp"

namespace katt::attention::impl {

/// The columns of a tile in shared memory: whole stripes.
constexpr int stored_columns(int head_dim) {
  return (head_dim + tile::stripe_columns - 1) / tile::stripe_columns * tile::stripe_columns;
}

/// The ways of rows of head_dim elements between global memory and tiles in shared memory, which
/// lie there as tile::swizzled() says, head_dim padded with zeros to whole stripes of HeadDim.
template <class T, int HeadDim>
struct RowCopies {
  static_assert(sizeof(T) == 2 && HeadDim % 32 == 0);
  static constexpr int chunks = HeadDim / 8;  ///< of 16 bytes in a row
  static constexpr int stored_chunks = stored_columns(HeadDim) / 8;
  /// Threads load so many chunks beside each other: a power of two.
  static constexpr int together = stored_chunks & -stored_chunks;

  /// Begins to copy rows into a tile of `Rows`, by `Threads` threads of which this is `thread`;
  /// rows from `live` on, and columns from head_dim on, are zero. row_pointer(r) is called for the
  /// rows of this thread, in order; `anywhere` is some address that may be read.
  template <int Threads, int Rows, class Block, class RowPointer>
  KOKKOS_INLINE_FUNCTION static void load(Block& block, unsigned thread, unsigned target,
                                          int head_dim, int live, const T* anywhere,
                                          const RowPointer& row_pointer) {
    constexpr int step = Threads / together;  // rows that all threads load at once
    static_assert(Threads % together == 0 && Rows % step == 0);
    const unsigned first = thread / together;
    KATT_UNROLL_4 for (int i = 0; i < Rows / step; ++i) {
      const int r = static_cast<int>(first) + i * step;
      const T* source = row_pointer(r);
      KATT_UNROLL for (int part = 0; part < stored_chunks; part += together) {
        const unsigned column = (part + thread % together) * 8;
        const bool there = r < (static_cast<int>(column) < head_dim ? live : 0);
        block.copy_async(target + tile::swizzled(Rows, first + i * step, column),
                         there ? source + column : anywhere, there);
      }
    }
  }

  /// Writes accumulators, times a factor a row, for the sixteen rows of a warp, from `first_row` of
  /// a tile of `Rows` on, of which the first `live` of the tile exist. They go through the warp's
  /// rows of the tile at byte `tile`, which nobody may read any more; so whole chunks of 16 bytes
  /// are written.
  template <int Rows, class Block, class RowPointer>
  KOKKOS_INLINE_FUNCTION static void store(Block& block, const float (&o)[HeadDim / 8][4],
                                           const float (&factor)[2], unsigned tile,
                                           unsigned first_row, int head_dim, int live,
                                           const RowPointer& row_pointer) {
    const unsigned lane = block.thread() % tile::warp_size;
    block.sync_warp();
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      const tile::Position at = tile::accumulator_position(lane, 2 * half);
      KATT_UNROLL for (int n = 0; n < HeadDim / 8; ++n) {
        block.store_pair(tile + tile::swizzled(Rows, first_row + at.row, 8 * n + at.column),
                         Block::template pack<T>(o[n][2 * half] * factor[half],
                                                 o[n][2 * half + 1] * factor[half]));
      }
    }
    block.sync_warp();
    const int live_rows = Kokkos::min(16, live - static_cast<int>(first_row));
    for (int i = static_cast<int>(lane); i < live_rows * chunks;
         i += static_cast<int>(tile::warp_size)) {
      const int r = static_cast<int>(first_row) + i / chunks;
      const int column = i % chunks * 8;
      if (column < head_dim) {
        block.copy_chunk(row_pointer(r) + column, tile + tile::swizzled(Rows, r, column));
      }
    }
  }

  /// Writes the same without shared memory. The four lanes of a row exchange pairs, so that each
  /// has eight columns of one block of four, and writes 16 bytes at once.
  template <class Block, class RowPointer>
  KOKKOS_INLINE_FUNCTION static void store_transposed(Block& block,
                                                      const float (&o)[HeadDim / 8][4],
                                                      const float (&factor)[2], unsigned first_row,
                                                      int head_dim, int live,
                                                      const RowPointer& row_pointer) {
    const unsigned lane = block.thread() % tile::warp_size;
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      const int r = static_cast<int>(first_row + tile::accumulator_position(lane, 2 * half).row);
      T* const row = r < live ? row_pointer(r) : nullptr;
      KATT_UNROLL for (int n = 0; n < HeadDim / 8; n += 4) {
        Chunk chunk;
        KATT_UNROLL for (int i = 0; i < 4; ++i) {
          chunk.pair[i] = Block::template pack<T>(o[n + i][2 * half] * factor[half],
                                                  o[n + i][2 * half + 1] * factor[half]);
        }
        transpose(block, chunk, lane);
        const int column = 8 * (n + static_cast<int>(lane % 4));
        if (row != nullptr && column < head_dim) *reinterpret_cast<Chunk*>(row + column) = chunk;
      }
    }
  }

 private:
  struct alignas(16) Chunk {
    std::uint32_t pair[4];
  };

  /// pair[i] of lane j of four goes to pair[j] of lane i.
  template <class Block>
  KOKKOS_INLINE_FUNCTION static void transpose(const Block& block, Chunk& chunk, unsigned lane) {
    KATT_UNROLL for (int bit = 1; bit < 4; bit *= 2) {
      const bool upper = (lane & static_cast<unsigned>(bit)) != 0;
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        if ((i & bit) != 0) continue;
        std::uint32_t& low = chunk.pair[i];
        std::uint32_t& high = chunk.pair[i + bit];
        const std::uint32_t other = block.shuffle_xor(upper ? low : high, bit);
        (upper ? low : high) = other;
      }
    }
  }
};

/// Begins to copy `count` rows of K or V from `key` on into a tile of `Rows`. The address steps
/// from row to row: the multiples of the stride would fill registers.
template <int HeadDim, int Threads, int Rows, class T, class Block>
KOKKOS_INLINE_FUNCTION void load_keys_of(Block& block, unsigned thread, unsigned target,
                                         int head_dim, const HeadRows<const T>& tensor,
                                         std::int64_t batch, std::int64_t kv_head, int key,
                                         int count) {
  constexpr int together = RowCopies<T, HeadDim>::together;
  const std::int64_t stride = tensor.stride_seq;
  const T* source = tensor.row(batch, kv_head, key + thread / together);
  RowCopies<T, HeadDim>::template load<Threads, Rows>(block, thread, target, head_dim, count,
                                                      tensor.data, [&](int) {
                                                        const T* row = source;
                                                        source += Threads / together * stride;
                                                        return row;
                                                      });
}

/// A divisor of rows, tiles or heads, of which there may be none.
inline tile::Divider divider(std::int64_t by) {
  return tile::Divider(static_cast<std::uint32_t>(Kokkos::max<std::int64_t>(by, 1)));
}

/// The frame of a forward kernel: arguments, work items, and which rows are loaded and written.
/// Packed rows and tiles are counted in 32 bits (tensor_core_supports()).
template <class T, int HeadDim, int TileQ, class Rule>
struct TensorCoreForward : ForwardProblem<T, Rule> {
  static_assert(TileQ % 16 == 0);
  using Copies = RowCopies<T, HeadDim>;
  using Softmax = FragmentSoftmax<T, Rule, tile::Divider>;

  /// As impl::QueryTile.
  struct QueryTile {
    std::int64_t batch;
    PackedRowsOf<std::uint32_t, tile::Divider> packed;
    int rows;

    KOKKOS_INLINE_FUNCTION std::int64_t first() const { return packed.query(0); }
    KOKKOS_INLINE_FUNCTION std::int64_t last() const { return packed.query(rows - 1); }
  };

  std::int64_t blocks;  ///< thread blocks of the grid: one a tile of query rows, unless persistent
  tile::Divider by_group, by_row_tiles, by_kv_heads;

  explicit TensorCoreForward(const ForwardArgs& args, const Rule& rule = {})
      : ForwardProblem<T, Rule>(args, rule),
        blocks(this->heads() * this->row_tiles(TileQ)),
        by_group(divider(this->group)),
        by_row_tiles(divider(this->row_tiles(TileQ))),
        by_kv_heads(divider(this->kv_heads)) {}

  /// As Problem::query_tile().
  KOKKOS_INLINE_FUNCTION QueryTile query_tile(std::int64_t index) const {
    const auto tile = static_cast<std::uint32_t>(index);
    const std::uint32_t head = tile / by_row_tiles;
    return query_tile(head, by_row_tiles.value() - 1 - tile % by_row_tiles);
  }
  /// Tile `row_tile` of pair `head` of a batch entry and a K/V head.
  KOKKOS_INLINE_FUNCTION QueryTile query_tile(std::uint32_t head, std::uint32_t row_tile) const {
    const std::uint32_t begin = row_tile * TileQ;
    const std::uint32_t left = static_cast<std::uint32_t>(this->rows) - begin;
    return {head / by_kv_heads,
            {head % by_kv_heads, by_group, begin},
            static_cast<int>(Kokkos::min<std::uint32_t>(TileQ, left))};
  }

  /// The query rows.
  template <int Threads, class Block>
  KOKKOS_INLINE_FUNCTION void load_queries(Block& block, unsigned thread, unsigned target,
                                           const QueryTile& item) const {
    Copies::template load<Threads, TileQ>(
        block, thread, target, this->head_dim, item.rows, this->q.data, [&](int r) {
          return r < item.rows ? this->q.row(item.batch, item.packed.head(r), item.packed.query(r))
                               : this->q.data;
        });
  }

  /// The rows of K or V that belong to the tile of `tiles`.
  template <int Threads, int TileKv, class Block>
  KOKKOS_INLINE_FUNCTION void load_keys(Block& block, unsigned thread, unsigned target,
                                        const HeadRows<const T>& tensor, const QueryTile& item,
                                        const LiveKeys<int>& tiles) const {
    load_keys_of<HeadDim, Threads, TileKv>(block, thread, target, this->head_dim, tensor,
                                           item.batch, item.packed.kv_head, tiles.key(),
                                           tiles.columns());
  }

  /// O / l and lse for the sixteen rows of a warp; see RowCopies::store().
  template <class Block>
  KOKKOS_INLINE_FUNCTION void write(Block& block, const float (&o)[HeadDim / 8][4],
                                    const Softmax& softmax, unsigned q_tile, unsigned first_row,
                                    const QueryTile& item) const {
    write_lse(block, softmax, first_row, item);
    const float factor[2] = {softmax.inverse_sum(0), softmax.inverse_sum(1)};
    Copies::template store<TileQ>(
        block, o, factor, q_tile, first_row, this->head_dim, item.rows, [&](int r) {
          return this->out.row(item.batch, item.packed.head(r), item.packed.query(r));
        });
  }
  /// The same from registers; see RowCopies::store_transposed().
  template <class Block>
  KOKKOS_INLINE_FUNCTION void write(Block& block, const float (&o)[HeadDim / 8][4],
                                    const Softmax& softmax, unsigned first_row,
                                    const QueryTile& item) const {
    write_lse(block, softmax, first_row, item);
    const float factor[2] = {softmax.inverse_sum(0), softmax.inverse_sum(1)};
    Copies::store_transposed(block, o, factor, first_row, this->head_dim, item.rows, [&](int r) {
      return this->out.row(item.batch, item.packed.head(r), item.packed.query(r));
    });
  }

 private:
  template <class Block>
  KOKKOS_INLINE_FUNCTION void write_lse(const Block& block, const Softmax& softmax,
                                        unsigned first_row, const QueryTile& item) const {
    const unsigned lane = block.thread() % tile::warp_size;
    if (!this->lse || lane % 4 != 0) return;
    for (int half = 0; half < 2; ++half) {
      const int r = static_cast<int>(first_row + tile::accumulator_position(lane, 2 * half).row);
      if (r < item.rows) {
        this->lse(item.batch, item.packed.head(r), item.packed.query(r)) =
            softmax.log_sum_exp(half);
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

/// S = A·Bᵀ for the sixteen rows of a warp, from `first_row` on, of a tile A of RowsA, and all rows
/// of a tile B of N · 8; the tiles begin at bytes a_tile and b_tile.
template <class T, int HeadDim, int RowsA, class Block, int N>
KOKKOS_INLINE_FUNCTION void multiply_by_rows(Block& block, float (&s)[N][4], unsigned a_tile,
                                             unsigned first_row, unsigned b_tile, unsigned lane) {
  clear(s);
  const tile::SwizzledLane left(a_tile + first_row * 128, tile::a_source(lane));
  const tile::SwizzledLane right(b_tile, tile::b_source_by_columns(lane));
  KATT_UNROLL for (int d = 0; d < HeadDim; d += 16) {
    std::uint32_t a[4];
    block.load_matrices(a, left.at(RowsA, 0, d));
    KATT_UNROLL for (int j = 0; j < N; j += 2) {
      std::uint32_t pair[4];
      block.load_matrices(pair, right.at(N * 8, j * 8, d));
      block.template mma<T>(s[j], a, pair[0], pair[1]);
      block.template mma<T>(s[j + 1], a, pair[2], pair[3]);
    }
  }
}

/// O += P·B for sixteen rows of P in a warp's registers, rounded to T, and a tile B of N · 8 rows.
template <class T, int HeadDim, class Block, int N>
KOKKOS_INLINE_FUNCTION void accumulate(Block& block, float (&o)[HeadDim / 8][4],
                                       const float (&p)[N][4], unsigned b_tile, unsigned lane) {
  const tile::SwizzledLane values(b_tile, tile::b_source_by_rows(lane));
  KATT_UNROLL for (int j = 0; j < N; j += 2) {
    std::uint32_t a[4];
    KATT_UNROLL for (int i = 0; i < 4; ++i) a[i] = operand_a<T, Block>(p, j / 2, i);
    KATT_UNROLL for (int d = 0; d < HeadDim; d += 16) {
      std::uint32_t pair[4];
      block.load_matrices_transposed(pair, values.at(N * 8, j * 8, d));
      block.template mma<T>(o[d / 8], a, pair[0], pair[1]);
      block.template mma<T>(o[d / 8 + 1], a, pair[2], pair[3]);
    }
  }
}

}  // namespace katt::attention::impl
