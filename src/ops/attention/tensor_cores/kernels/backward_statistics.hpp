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

  static constexpr int row_threads = TileQ / 16 * tile::warp_size;
  std::int64_t row_tiles;
  std::int64_t blocks;  ///< thread blocks of the grid

  BackwardRows(const BackwardArgs& args, void* workspace, const Rule& rule)
      : Frame(args, workspace, rule),
        row_tiles((this->rows + TileQ - 1) / TileQ),
        blocks(this->heads() * row_tiles) {}

  /// RowShift, from lse, and Δ of the lane's rows, `row` and `row` + 8 of the tile, and 0 for rows that
  /// are not there.
  template <class Block>
  KOKKOS_INLINE_FUNCTION RowStatistics row_statistics(const Block& block, std::int64_t batch,
                                                      std::int64_t kv_head, int begin, int row,
                                                      int count, unsigned lane) const {
    struct alignas(16) Chunk {
      T element[8];
    };
    RowStatistics own{};
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half;
      float delta = 0.0F;
      if (r < count) {
        const T* from_out = this->packed_row(this->out, batch, kv_head, begin + r);
        const T* from_dout = this->packed_row(this->dout, batch, kv_head, begin + r);
        for (int d = static_cast<int>(lane) % 4 * 8; d < this->head_dim; d += 32) {
          const Chunk o = *reinterpret_cast<const Chunk*>(from_out + d);
          const Chunk g = *reinterpret_cast<const Chunk*>(from_dout + d);
          KATT_UNROLL for (int i = 0; i < 8; ++i) {
            delta = Kokkos::fma(static_cast<float>(o.element[i]), static_cast<float>(g.element[i]),
                                delta);
          }
        }
        const auto packed = static_cast<unsigned>(begin + r);
        const auto group = static_cast<unsigned>(this->group);
        const RowShift of_row =
            RowShift::of_lse(this->lse(batch, kv_head * group + packed % group, packed / group),
                             this->scores.unit());
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
  KOKKOS_INLINE_FUNCTION float lse_of(std::int64_t batch, const PackedRows& packed, int row,
                                      int count, int half) const {
    const int r = row + 8 * half;
    return r < count ? this->lse(batch, packed.head(r), packed.query(r)) : 0.0F;
  }
  /// True for all threads when a row of the tile is steep.
  template <class Block>
  KOKKOS_INLINE_FUNCTION bool any_steep(const Block& block, std::int64_t batch,
                                        const PackedRows& packed, int row, int count) const {
    return block.barrier_any(RowShift::is_steep(lse_of(batch, packed, row, count, 0)) ||
                             RowShift::is_steep(lse_of(batch, packed, row, count, 1)));
  }

  /// RowShift of the steep rows of the tile: largest score and sum over its keys, which pass through
  /// `k_tile`, with its queries at `q_tile`, or on their way there.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void settle_shifts(Block& block, const EntryScores<T, Rule>& scores,
                                            const PackedRows& packed, RowStatistics& own, int row,
                                            int count, unsigned first_row, unsigned lane,
                                            unsigned q_tile, unsigned k_tile) const {
    FragmentSoftmax<T, Rule> softmax(scores, packed, row, count, lane);
    LiveKeys<int> tiles(scores.mask, packed.query(0), packed.query(count - 1), TileKv);
    for (; tiles.valid(); tiles.next()) {
      load_keys_of<HeadDim, row_threads, TileKv>(block, block.thread(), k_tile, this->head_dim,
                                                 this->k, scores.batch, packed.kv_head, tiles.key(),
                                                 tiles.columns());
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
      const float lse = lse_of(scores.batch, packed, row, count, half);
      if (!RowShift::is_steep(lse)) continue;
      const RowShift of_row =
          RowShift::of_steep(lse, scores.unit(), softmax.largest(half), softmax.sum(half));
      own.shift[half] = of_row.shift;
      own.low[half] = of_row.low;
    }
  }

  /// To memory, for the other kernels.
  KOKKOS_INLINE_FUNCTION void write_statistics(const RowStatistics& own, std::int64_t batch,
                                               std::int64_t kv_head, int begin, int row,
                                               unsigned lane) const {
    const int pair_end = (this->rows + 1) / 2 * 2;  // the last pair may lack its second row
    for (int half = 0; half < 2; ++half) {
      const int packed = begin + row + 8 * half;
      if (lane % 4 != 0 || packed >= pair_end) continue;
      RowStatistics& target = this->statistics_of(batch, kv_head)[packed / 2];
      target.shift[packed % 2] = own.shift[half];
      target.low[packed % 2] = own.low[half];
      target.delta[packed % 2] = own.delta[half];
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
    const int begin = static_cast<int>(index % this->row_tiles) * tile_rows;
    const int count = Kokkos::min(int{tile_rows}, this->rows - begin);
    const std::int64_t kv_head = index / this->row_tiles % this->kv_heads;
    const std::int64_t batch = index / this->row_tiles / this->kv_heads;
    const PackedRows packed{kv_head, this->group, begin};
    const EntryScores<T, Rule> scores = this->scores.of(batch);
    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned first_row = block.thread() / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);

    RowStatistics own = this->row_statistics(block, batch, kv_head, begin, row, count, lane);
    if (this->any_steep(block, batch, packed, row, count)) {
      this->template load_rows_of<threads>(block, q_tile, this->q, batch, kv_head, begin, count);
      this->settle_shifts(block, scores, packed, own, row, count, first_row, lane, q_tile, k_tile);
    }
    this->write_statistics(own, batch, kv_head, begin, row, lane);
  }

 private:
  static constexpr unsigned q_tile = 0;
  static constexpr unsigned k_tile = tile_rows * HeadDim * 2;
};

}  // namespace katt::attention::impl
