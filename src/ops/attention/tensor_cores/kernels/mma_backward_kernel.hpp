#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/tensor_cores/kernels/backward_statistics.hpp"
#include "tile/cuda/fragments.hpp"

/// Flash attention, backward, with warp-wide matrix instructions (Dao 2023, FlashAttention-2,
/// arXiv:2307.08691, Algorithm 2, in two kernels so that nothing is added up by atomics):
///
///   for every (batch, kv head, tile of query rows):
///     Δ = rowsum dO ∘ O, kept with RowShift; for that, a tile with steep rows goes over its keys once
///     for every live tile of keys:
///       S = Q·Kᵀ,  dP = dO·Vᵀ;  P = exp(S − lse),  dS = P ∘ (dP − Δ)
///       dQ += dS·K
///     write scale · dQ
///
///   for every (batch, kv head, tile of keys):
///     for every live tile of query rows:
///       Sᵀ = K·Qᵀ,  dPᵀ = V·dOᵀ;  Pᵀ = exp(Sᵀ − lse),  dSᵀ = Pᵀ ∘ (dPᵀ − Δ)
///       dV += Pᵀ·dO,  dK += dSᵀ·Q
///     write scale · dK and dV
///
/// That is seven products instead of the five of a single kernel. In both kernels a warp has
/// sixteen rows of its tile, and P and dS go from its accumulators into its operands without
/// leaving registers. The kernel copies the next tile while it computes one. A block is the
/// kernels' only view of the machine, as for FlashMma.
namespace katt::attention::impl {

/// dQ, and RowShift and Δ as the other kernel reads them.
template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule>
struct FlashMmaBackwardQ : BackwardRows<T, HeadDim, TileQ, TileKv, Rule> {
  using Frame = BackwardRows<T, HeadDim, TileQ, TileKv, Rule>;
  using typename Frame::Item;
  using typename Frame::Pair;

  static constexpr int threads = Frame::row_threads;
  static constexpr int shared_bytes = (2 * TileQ + 4 * TileKv) * HeadDim * 2;
  static constexpr int blocks_per_multiprocessor = 1;

  FlashMmaBackwardQ(const BackwardArgs& args, void* workspace, const Rule& rule = {})
      : Frame(args, workspace, rule) {}

  /// Block `index` of the grid. Values that its loop seldom needs are computed again from `index`,
  /// to save registers.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t block_index) const {
    const auto index = static_cast<unsigned>(block_index);
    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned first_row = block.thread() / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);
    const auto here = [&] { return this->item(Block::computed_here(index)); };

    const Item first = this->item(index);
    const typename Frame::Packed packed = this->packed(first);
    const Mask mask = this->scores.masks.of(first.head.batch);
    LiveKeys<int> tiles(mask, packed.query(0), packed.query(first.count - 1), TileKv);
    if (tiles.valid()) {
      this->template load_rows<threads>(block, q_tile, dout_tile, first.head.batch,
                                        first.head.kv_head, first.begin, first.count);
      this->template load_keys<threads>(block, k_tile(0), v_tile(0), first.head.batch,
                                        first.head.kv_head, tiles.key(), tiles.columns());
      block.commit();
    }
    RowStatistics own = this->row_statistics(block, first, row, lane);
    if (this->any_steep(block, first, row)) {
      this->settle_shifts(block, first, own, row, first_row, lane, q_tile, k_tile(1));
    }
    this->write_statistics(own, first, row, lane);
    float dq[HeadDim / 8][4];
    clear(dq);
    for (unsigned stage = 0; tiles.valid(); stage ^= 1U) {
      block.template wait<0>();
      block.barrier();  // this tile is here for all threads, and none reads the other stage
      const int key = tiles.key();
      const bool partial = tiles.state() != TileState::full;
      tiles.next();
      if (tiles.valid()) {
        const Item at = here();
        this->template load_keys<threads>(block, k_tile(stage ^ 1U), v_tile(stage ^ 1U),
                                          at.head.batch, at.head.kv_head, tiles.key(),
                                          tiles.columns());
        block.commit();
      }
      float s[TileKv / 8][4];
      float dp[TileKv / 8][4];
      multiply_by_rows<T, HeadDim, TileQ>(block, s, q_tile, first_row, k_tile(stage), lane);
      multiply_by_rows<T, HeadDim, TileQ>(block, dp, dout_tile, first_row, v_tile(stage), lane);
      this->differentiate(
          block, s, dp, partial, [&](int) { return own; }, [](int i) { return i / 2; },
          [&](const Item& at, int n, int i) {
            return Pair{at.begin + row + i / 2 * 8, key + fragment_column(lane, n, i)};
          },
          [&](float(&shown)[TileKv / 8][4]) {
            const Item at = here();
            const EntryScores<T, Rule> scores = this->scores.of(at.head.batch);
            FragmentRows<T, Rule, tile::Divider>(scores, this->packed(at), row, at.count, lane)
                .hide(shown, key);
          },
          [] {}, here);
      accumulate<T, HeadDim>(block, dq, dp, k_tile(stage), lane);
    }
    const Item at = here();
    const float factor[2] = {this->scores.scale, this->scores.scale};
    Frame::Copies::template store<TileQ>(
        block, dq, factor, q_tile, first_row, this->head_dim, at.count, [&](int r) {
          return this->packed_row(this->dq, at.head.batch, at.head.kv_head, at.begin + r);
        });
  }

 private:
  // Offsets of the tiles in shared memory, in bytes; K and V have two stages.
  static constexpr unsigned q_tile = 0;
  static constexpr unsigned dout_tile = TileQ * HeadDim * 2;
  KOKKOS_INLINE_FUNCTION static constexpr unsigned k_tile(unsigned stage) {
    return 2 * TileQ * HeadDim * 2 + stage * 2 * TileKv * HeadDim * 2;
  }
  KOKKOS_INLINE_FUNCTION static constexpr unsigned v_tile(unsigned stage) {
    return k_tile(stage) + TileKv * HeadDim * 2;
  }
};

/// dK and dV, after FlashMmaBackwardQ.
template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule>
struct FlashMmaBackwardKv : TensorCoreBackward<T, HeadDim, TileQ, TileKv, Rule> {
  using Frame = TensorCoreBackward<T, HeadDim, TileQ, TileKv, Rule>;
  using typename Frame::Pair;

  static constexpr int threads = TileKv / 16 * tile::warp_size;
  static constexpr int statistics_bytes = TileQ / 2 * static_cast<int>(sizeof(RowStatistics));
  static constexpr int shared_bytes = (4 * TileQ + 2 * TileKv) * HeadDim * 2 + 2 * statistics_bytes;
  static constexpr int blocks_per_multiprocessor = 1;
  static_assert(TileQ <= threads);
  tile::Divider by_key_tiles;
  std::int64_t blocks;  ///< thread blocks of the grid

  FlashMmaBackwardKv(const BackwardArgs& args, void* workspace, const Rule& rule = {})
      : Frame(args, workspace, rule),
        by_key_tiles(divider((this->keys + TileKv - 1) / TileKv)),
        blocks(this->heads() * ((this->keys + TileKv - 1) / TileKv)) {}

  /// Block `index` of the grid. Values that its loop seldom needs are computed again from `index`,
  /// to save registers.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t block_index) const {
    const auto index = static_cast<unsigned>(block_index);
    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned first_key = block.thread() / tile::warp_size * 16;  // of the warp
    const auto here = [&] { return item(Block::computed_here(index)); };
    const auto own_key = [&](const Item& at) {
      return at.key + static_cast<int>(first_key + tile::accumulator_position(lane, 0).row);
    };

    const Item first = item(index);
    const Mask mask = this->scores.masks.of(first.head.batch);
    const int live = position<int>(mask.interval.keys - first.key, first.count);  // none behind
    LiveQueries<int> tiles(mask, first.key, first.key + first.count, this->group, this->rows,
                           TileQ);
    if (tiles.valid()) {
      this->template load_keys<threads>(block, k_tile, v_tile, first.head.batch, first.head.kv_head,
                                        first.key, live);
      load_tile(block, 0, first.head, tiles);
    }
    float dk[HeadDim / 8][4];
    float dv[HeadDim / 8][4];
    clear(dk);
    clear(dv);
    for (unsigned stage = 0; tiles.valid(); stage ^= 1U) {
      block.template wait<0>();
      block.barrier();  // this tile is here for all threads, and none reads the other stage
      const int row = tiles.row();
      const bool partial = tiles.state() != TileState::full;
      tiles.next();
      if (tiles.valid()) load_tile(block, stage ^ 1U, here().head, tiles);
      float s[TileQ / 8][4];
      float dp[TileQ / 8][4];
      multiply_by_rows<T, HeadDim, TileKv>(block, s, k_tile, first_key, q_tile(stage), lane);
      multiply_by_rows<T, HeadDim, TileKv>(block, dp, v_tile, first_key, dout_tile(stage), lane);
      this->differentiate(
          block, s, dp, partial,
          [&](int n) {
            const unsigned at =
                statistics_at(stage) +
                static_cast<unsigned>(fragment_column(lane, n, 0)) / 2 * sizeof(RowStatistics);
            return RowStatistics{block.template load_chunk<RowShifts>(at),
                                 block.template load_chunk<RowDeltas>(at + sizeof(RowShifts))};
          },
          [](int i) { return i % 2; },
          [&](const Item& at, int n, int i) {
            return Pair{row + fragment_column(lane, n, i), own_key(at) + i / 2 * 8};
          },
          [&](float(&shown)[TileQ / 8][4]) {
            const Item at = here();
            this->visible_rows(this->scores.masks.of(at.head.batch), own_key(at), row, lane)
                .apply(shown, lane);
          },
          [] {}, here);
      accumulate<T, HeadDim>(block, dv, s, dout_tile(stage), lane);
      accumulate<T, HeadDim>(block, dk, dp, q_tile(stage), lane);
    }
    const Item at = here();
    const auto store = [&](const float(&gradient)[HeadDim / 8][4], float factor, unsigned tile,
                           const HeadRows<T>& target) {
      const float factors[2] = {factor, factor};
      Frame::Copies::template store<TileKv>(
          block, gradient, factors, tile, first_key, this->head_dim, at.count,
          [&](int r) { return target.row(at.head.batch, at.head.kv_head, at.key + r); });
    };
    store(dk, this->scores.scale, k_tile, this->dk);
    store(dv, 1.0F, v_tile, this->dv);
  }

 private:
  struct Item {
    typename Frame::HeadPair head;
    int key, count;
  };
  /// Head-major, within a head from the first keys, which the most rows see under a causal mask, to
  /// the last.
  KOKKOS_INLINE_FUNCTION Item item(unsigned index) const {
    const int key = static_cast<int>(index % by_key_tiles) * TileKv;
    return {this->head_pair(index / by_key_tiles), key, Kokkos::min(TileKv, this->keys - key)};
  }

  // Offsets of the tiles in shared memory, in bytes; Q, dO and the statistics have two stages.
  static constexpr unsigned k_tile = 0;
  static constexpr unsigned v_tile = TileKv * HeadDim * 2;
  KOKKOS_INLINE_FUNCTION static constexpr unsigned q_tile(unsigned stage) {
    return 2 * TileKv * HeadDim * 2 + stage * 2 * TileQ * HeadDim * 2;
  }
  KOKKOS_INLINE_FUNCTION static constexpr unsigned dout_tile(unsigned stage) {
    return q_tile(stage) + TileQ * HeadDim * 2;
  }
  KOKKOS_INLINE_FUNCTION static constexpr unsigned statistics_at(unsigned stage) {
    return q_tile(2) + stage * statistics_bytes;
  }

  /// Begins to copy rows and statistics of a tile. Rows that are not there have zeros for all of them:
  /// their P is finite and their dO, Q and Δ are 0.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void load_tile(Block& block, unsigned stage,
                                        const typename Frame::HeadPair& head,
                                        const LiveQueries<int>& tiles) const {
    const unsigned thread = block.thread();
    this->template load_rows<threads>(block, q_tile(stage), dout_tile(stage), head.batch,
                                      head.kv_head, tiles.row(), tiles.count());
    if (thread < TileQ) {  // two chunks a pair
      const auto* first =
          reinterpret_cast<const RowShifts*>(this->statistics_of(head.batch, head.kv_head));
      const int chunk = tiles.row() + static_cast<int>(thread);
      const bool live = chunk / 2 < (this->rows + 1) / 2;
      block.copy_async(statistics_at(stage) + thread * 16, live ? first + chunk : first, live);
    }
    block.commit();
  }
};

}  // namespace katt::attention::impl
