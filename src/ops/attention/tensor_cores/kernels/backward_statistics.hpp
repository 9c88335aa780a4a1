#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/tensor_cores/kernels/backward_frame.hpp"

namespace katt::attention::impl {

/// RowShift and Δ of a tile of query rows, sixteen rows a warp:
///
///   Δ = rowsum dO ∘ O; RowShift from lse, and for a tile with steep rows from a pass over its keys
template <class T, int HeadDim, int TileQ, int TileKv, class Rule>
struct BackwardRows : TensorCoreBackward<T, HeadDim, TileQ, TileKv, Rule> {
  using Frame = TensorCoreBackward<T, HeadDim, TileQ, TileKv, Rule>;
  using typename Frame::Packed;

  static constexpr int row_threads = TileQ / 16 * tile::warp_size;
  tile::Divider by_row_tiles;
  std::int64_t blocks;  ///< thread blocks of the grid

  BackwardRows(const BackwardArgs& args, void* workspace, const Rule& rule)
      : Frame(args, workspace, rule),
        by_row_tiles(divider(this->row_tiles(TileQ))),
        blocks(this->heads() * this->row_tiles(TileQ)) {}

  /// Packed rows of a K/V head.
  struct Item {
    typename Frame::HeadPair head;
    int begin, count;
  };
  /// The rows of block `index` of the grid: head-major, within a head from the last row tile, which sees
  /// the most keys under a causal mask, to the first.
  KOKKOS_INLINE_FUNCTION Item item(unsigned index) const {
    const unsigned from_last = index % by_row_tiles;
    const int begin = static_cast<int>(by_row_tiles.value() - 1 - from_last) * TileQ;
    return {this->head_pair(index / by_row_tiles), begin, Kokkos::min(TileQ, this->rows - begin)};
  }
  KOKKOS_INLINE_FUNCTION Packed packed(const Item& at) const {
    return {at.head.kv_head, this->by_group, static_cast<std::uint32_t>(at.begin)};
  }

  /// RowShift, from lse, and Δ of the lane's rows, `row` and `row` + 8 of the tile, and 0 for rows that
  /// are not there.
  template <class Block>
  KOKKOS_INLINE_FUNCTION RowStatistics row_statistics(const Block& block, const Item& at, int row,
                                                      unsigned lane) const {
    struct alignas(16) Chunk {
      T element[8];
    };
    RowStatistics own{};
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half;
      float delta = 0.0F;
      if (r < at.count) {
        const T* from_out =
            this->packed_row(this->out, at.head.batch, at.head.kv_head, at.begin + r);
        const T* from_dout =
            this->packed_row(this->dout, at.head.batch, at.head.kv_head, at.begin + r);
        for (int d = static_cast<int>(lane) % 4 * 8; d < this->head_dim; d += 32) {
          const Chunk o = *reinterpret_cast<const Chunk*>(from_out + d);
          const Chunk g = *reinterpret_cast<const Chunk*>(from_dout + d);
          KATT_UNROLL for (int i = 0; i < 8; ++i) {
            delta = Kokkos::fma(static_cast<float>(o.element[i]), static_cast<float>(g.element[i]),
                                delta);
          }
        }
        const RowShift of_row = RowShift::of_lse(lse_of(at, row, half), this->scores.unit());
        own.shift[half] = of_row.shift;
        own.low[half] = of_row.low;
      }
      delta += block.shuffle_xor(delta, 1);
      delta += block.shuffle_xor(delta, 2);
      own.delta[half] = delta;
    }
    return own;
  }

  /// The lse of the lane's row `half`, and 0 where there is none.
  KOKKOS_INLINE_FUNCTION float lse_of(const Item& at, int row, int half) const {
    const int r = row + 8 * half;
    const Packed rows = packed(at);
    return r < at.count ? this->lse(at.head.batch, rows.head(r), rows.query(r)) : 0.0F;
  }
  /// True for all threads when a row of the tile is steep.
  template <class Block>
  KOKKOS_INLINE_FUNCTION bool any_steep(const Block& block, const Item& at, int row) const {
    return block.barrier_any(RowShift::is_steep(lse_of(at, row, 0)) ||
                             RowShift::is_steep(lse_of(at, row, 1)));
  }

  /// RowShift of the steep rows of the tile: largest score and sum over its keys, which pass through
  /// `k_tile`, with its queries at `q_tile`, or on their way there.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void settle_shifts(Block& block, const Item& at, RowStatistics& own,
                                            int row, unsigned first_row, unsigned lane,
                                            unsigned q_tile, unsigned k_tile) const {
    const EntryScores<T, Rule> scores = this->scores.of(at.head.batch);
    const PackedRows rows{at.head.kv_head, this->group, at.begin};
    FragmentSoftmax<T, Rule> softmax(scores, rows, row, at.count, lane);
    LiveKeys<int> tiles(scores.mask, rows.query(0), rows.query(at.count - 1), TileKv);
    for (; tiles.valid(); tiles.next()) {
      load_keys_of<HeadDim, row_threads, TileKv>(block, block.thread(), k_tile, this->head_dim,
                                                 this->k, at.head.batch, at.head.kv_head,
                                                 tiles.key(), tiles.columns());
      block.commit();
      block.template wait<0>();
      block.barrier();
      float s[TileKv / 8][4];
      multiply_by_rows<T, HeadDim, TileQ>(block, s, q_tile, first_row, k_tile, lane);
      softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
      float rescale[2];
      softmax.probabilities(block, s, rescale);
      block.barrier();  // none reads these keys any more
    }
    softmax.finish(block);
    for (int half = 0; half < 2; ++half) {
      const float lse = lse_of(at, row, half);
      if (!RowShift::is_steep(lse)) continue;
      const RowShift of_row =
          RowShift::of_steep(lse, scores.unit(), softmax.largest(half), softmax.sum(half));
      own.shift[half] = of_row.shift;
      own.low[half] = of_row.low;
    }
  }

  /// To memory, for the other kernels.
  KOKKOS_INLINE_FUNCTION void write_statistics(const RowStatistics& own, const Item& at, int row,
                                               unsigned lane) const {
    const int pair_end = (this->rows + 1) / 2 * 2;  // the last pair may lack its second row
    for (int half = 0; half < 2; ++half) {
      const int r = at.begin + row + 8 * half;
      if (lane % 4 != 0 || r >= pair_end) continue;
      RowStatistics& target = this->statistics_of(at.head.batch, at.head.kv_head)[r / 2];
      target.shift[r % 2] = own.shift[half];
      target.low[r % 2] = own.low[half];
      target.delta[r % 2] = own.delta[half];
    }
  }
};

/// The statistics of all rows, as a kernel of its own.
template <class T, int HeadDim, class Rule = NoRule>
struct BackwardStatistics : BackwardRows<T, HeadDim, 64, 64, Rule> {
  using Rows = BackwardRows<T, HeadDim, 64, 64, Rule>;

  static constexpr int tile_rows = 64;
  static constexpr int threads = Rows::row_threads;
  static constexpr int shared_bytes = 2 * tile_rows * HeadDim * 2;
  static constexpr int blocks_per_multiprocessor = 1;

  BackwardStatistics(const BackwardArgs& args, void* workspace, const Rule& rule = {})
      : Rows(args, workspace, rule) {}

  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    const typename Rows::Item at = this->item(static_cast<unsigned>(index));
    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned first_row = block.thread() / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);

    RowStatistics own = this->row_statistics(block, at, row, lane);
    if (this->any_steep(block, at, row)) {
      this->template load_rows_of<threads>(block, q_tile, this->q, at.head.batch, at.head.kv_head,
                                           at.begin, at.count);
      this->settle_shifts(block, at, own, row, first_row, lane, q_tile, k_tile);
    }
    this->write_statistics(own, at, row, lane);
  }

 private:
  static constexpr unsigned q_tile = 0;
  static constexpr unsigned k_tile = tile_rows * HeadDim * 2;
};

}  // namespace katt::attention::impl
