#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/tensor_cores/kernels/wgmma_backward_frame.hpp"
#include "tile/cuda/fragments.hpp"

/// Flash attention, backward, with the matrix instructions of a warpgroup: the two kernels of
/// mma_backward_kernel.hpp, after BackwardStatistics. One warpgroup of a block loads, the others
/// compute, 64 rows of the tile each:
///
///   loading:    for every live tile n: wait until its stage is free; its rows into the stage
///   computing:  begin S, dP of tile 0;  P when S is there, dS when dP is there
///               for n = 1 …: begin the gradients' products of tile n − 1, then S of tile n;
///                            when the former are there: free the stage, begin dP, which needs their
///                            operands' registers;  P when S is there, dS when dP is there
///
/// The computing warpgroups take turns to begin products, so that the exponentials of one run
/// beside the products of another (Shah et al. 2024, FlashAttention-3, arXiv:2407.08608,
/// section 3.1).
namespace katt::attention::impl {

/// Gradients that a kernel over keys computes: both, or one where both do not fit the registers.
enum class KeyGradients { both, k, v };

/// dK and dV, after BackwardStatistics.
template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule,
          KeyGradients Gradients = KeyGradients::both>
struct FlashWgmmaBackwardKv
    : WgmmaBackward<TensorCoreBackward<T, HeadDim, TileQ, TileKv, Rule>, TileKv / 64, HeadDim,
                    TileQ, TileQ / 2 * static_cast<int>(sizeof(RowStatistics)),
                    Gradients == KeyGradients::v ? 1 : 2> {
  using Frame = TensorCoreBackward<T, HeadDim, TileQ, TileKv, Rule>;
  using Base = WgmmaBackward<Frame, TileKv / 64, HeadDim, TileQ,
                             TileQ / 2 * static_cast<int>(sizeof(RowStatistics)),
                             Gradients == KeyGradients::v ? 1 : 2>;
  using Base::group_threads;
  using Base::threads;
  using typename Frame::Pair;
  static constexpr bool gives_k = Gradients != KeyGradients::v;
  static constexpr bool gives_v = Gradients != KeyGradients::k;
  static constexpr const char* name = !gives_v   ? "katt::attention::flash_wgmma_backward_dk"
                                      : !gives_k ? "katt::attention::flash_wgmma_backward_dv"
                                                 : "katt::attention::flash_wgmma_backward_dkv";

  LongestFirst order;
  std::int64_t blocks;  ///< thread blocks of the grid
  /// From a loading thread's packed row to its next: query heads, and elements of q and dout.
  int head_step;
  std::int64_t q_step, dout_step;
  std::int64_t q_wrap, dout_wrap;  ///< from beyond the last query head of a group to the next query

  /// Chunks of a row that threads load beside each other; with more a thread loads several.
  static constexpr int together = Kokkos::min(Frame::Copies::chunks, 16);
  static constexpr int row_step = group_threads / together;

  FlashWgmmaBackwardKv(const BackwardArgs& args, void* workspace, const Rule& rule = {})
      : Base(args, workspace, rule),
        order(LongestFirst::evenly(this->heads(), (this->keys + TileKv - 1) / TileKv,
                                   std::int64_t{this->rows} * HeadDim * 4)),
        blocks(order.tiles()),
        head_step(row_step % this->group),
        q_step(row_step / this->group * this->q.stride_seq + head_step * this->q.stride_head),
        dout_step(row_step / this->group * this->dout.stride_seq +
                  head_step * this->dout.stride_head),
        q_wrap(this->q.stride_seq - this->group * this->q.stride_head),
        dout_wrap(this->dout.stride_seq - this->group * this->dout.stride_head) {}

  /// Block `index` of the grid: in a section of heads the first keys, which the most rows see under a
  /// causal mask, first.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    Base::init(block);
    const auto [head, key, count] = item(static_cast<unsigned>(index));
    const Mask mask = this->scores.masks.of(head.batch);
    LiveQueries<int> tiles(mask, key, key + count, this->group, this->rows, TileQ);
    if (block.thread() < group_threads) {
      block.template decrease_registers<Base::loading_registers>();
      const int live = position<int>(mask.interval.keys - key, count);  // none behind is read
      Base::load(block, tiles, [&, head = head, key = key](unsigned n) {
        if (n == 0 && gives_k) {
          this->template load_keys<group_threads>(block, Base::own_tile(0), Base::own_tile(1),
                                                  head.batch, head.kv_head, key, live);
        } else if (n == 0) {
          load_keys_of<HeadDim, group_threads, TileKv>(block, block.thread(), Base::own_tile(0),
                                                       this->head_dim, this->k, head.batch,
                                                       head.kv_head, key, live);
        }
        load_tile(block, n, head.batch, head.kv_head, tiles);
      });
    } else {
      block.template increase_registers<Base::computing_registers>();
      compute(block, static_cast<unsigned>(index), tiles);
    }
  }

 private:
  struct Item {
    typename Frame::HeadPair head;
    int key, count;
  };
  KOKKOS_INLINE_FUNCTION Item item(unsigned index) const {
    const LongestFirst::Tile at = order.at(index);
    const int key = static_cast<int>(order.row_tiles() - 1 - at.row_tile) * TileKv;
    return {this->head_pair(at.head), key, Kokkos::min(TileKv, this->keys - key)};
  }

  KOKKOS_INLINE_FUNCTION static constexpr unsigned statistics_at(unsigned n) {
    return Base::stage_tile(2, n);
  }

  /// Begins to copy rows and statistics of a tile. Rows that are not there have zeros for all of them:
  /// their P is finite and their dO, Q and Δ are 0.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void load_tile(Block& block, unsigned n, std::int64_t batch,
                                        std::int64_t kv_head, const LiveQueries<int>& tiles) const {
    static_assert(row_step % 8 == 0 && TileQ % row_step == 0);
    const unsigned thread = block.thread();
    const unsigned column = thread % together * 8;
    const unsigned first = thread / together;
    const unsigned packed = static_cast<unsigned>(tiles.row()) + first;
    const auto group = static_cast<unsigned>(this->group);
    int member = static_cast<int>(packed % group);
    const T* q = this->q.row(batch, kv_head * group + member, packed / group) + column;
    const T* dout = this->dout.row(batch, kv_head * group + member, packed / group) + column;
    KATT_UNROLL_4 for (int i = 0; i < TileQ / row_step; ++i) {
      KATT_UNROLL for (int part = 0; part < HeadDim; part += 8 * together) {
        const int live = static_cast<int>(column) + part < this->head_dim ? tiles.count() : 0;
        const bool there = static_cast<int>(first) + i * row_step < live;
        const unsigned offset =
            tile::swizzled(TileQ, first, column + part) + static_cast<unsigned>(i) * row_step * 128;
        block.copy_async(Base::stage_tile(0, n) + offset, there ? q + part : this->q.data, there);
        block.copy_async(Base::stage_tile(1, n) + offset, there ? dout + part : this->dout.data,
                         there);
      }
      q += q_step;
      dout += dout_step;
      member += head_step;
      if (member >= this->group) {
        member -= this->group;
        q += q_wrap;
        dout += dout_wrap;
      }
    }
    if (thread < TileQ) {  // two chunks a pair
      const auto* source = reinterpret_cast<const RowShifts*>(this->statistics_of(batch, kv_head));
      const int chunk = tiles.row() + static_cast<int>(thread);
      const bool there = chunk / 2 < (this->rows + 1) / 2;
      block.copy_async(statistics_at(n) + thread * 16, there ? source + chunk : source, there);
    }
  }

  /// A computing warpgroup: the keys of the tile from 64 times its number on. Values that the loop
  /// seldom needs are computed again from `index`, to save registers.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void compute(Block& block, unsigned index, LiveQueries<int>& tiles) const {
    const unsigned thread = block.thread() - group_threads;
    const unsigned lane = thread % tile::warp_size;
    const unsigned group_row = thread / group_threads * 64;
    const unsigned first_key = thread / tile::warp_size * 16;  // of the warp
    const auto here = [&] { return item(Block::computed_here(index)); };
    const auto own_key = [&](const Item& at) {
      return at.key + static_cast<int>(first_key + tile::accumulator_position(lane, 0).row);
    };
    const typename Base::GroupTurns turns{static_cast<int>(group_row / 64)};

    float dk[HeadDim / 8][4];
    float dv[HeadDim / 8][4];
    float s[TileQ / 8][4];
    float dp[TileQ / 8][4];
    std::uint32_t p[TileQ / 16][4];
    std::uint32_t ds[TileQ / 16][4];
    clear(dk);
    clear(dv);
    clear(s);
    clear(dp);
    const auto differentiate = [&](unsigned n) {
      const int row = tiles.row();
      this->differentiate(
          block, s, dp, tiles.state() != TileState::full,
          [&](int m) {
            const unsigned at =
                statistics_at(n) +
                static_cast<unsigned>(fragment_column(lane, m, 0)) / 2 * sizeof(RowStatistics);
            return RowStatistics{block.template load_chunk<RowShifts>(at),
                                 block.template load_chunk<RowDeltas>(at + sizeof(RowShifts))};
          },
          [](int i) { return i % 2; },
          [&](const Item& at, int m, int i) {
            return Pair{row + fragment_column(lane, m, i), own_key(at) + i / 2 * 8};
          },
          [&](float(&shown)[TileQ / 8][4]) {
            const Item at = here();
            this->visible_rows(this->scores.masks.of(at.head.batch), own_key(at), row, lane)
                .apply(shown, lane);
          },
          [&] {
            if (!gives_k) return;
            Base::wait_full(block, n);  // over: a branch, which keeps the next wait below P
            block.template wgmma_wait<0>();
            block.hold(dp);
          },
          here);
      if (gives_v) Base::template round<T>(block, p, s);
      if (gives_k) Base::template round<T>(block, ds, dp);
    };
    const auto begin_gradients = [&](unsigned n) {
      if (gives_v) Base::template begin_gradient<T>(block, dv, p, 1, n);
      if (gives_k) Base::template begin_gradient<T>(block, dk, ds, 0, n);
      block.wgmma_commit();
    };
    const auto begin_dp = [&](unsigned n) {
      if (!gives_k) return;
      Base::template begin_scores<T>(block, dp, group_row, 1, n);
      block.wgmma_commit();
    };
    const auto hold_operands = [&] {
      if (gives_v) block.hold(p);
      if (gives_k) block.hold(ds);
    };
    constexpr int beside_scores = gives_k ? 1 : 0;  // groups of products begun after those of S
    if (tiles.valid()) {
      Base::wait_full(block, 0);
      Base::template begin_scores<T>(block, s, group_row, 0, 0);
      block.wgmma_commit();
      begin_dp(0);
      block.template wgmma_wait<beside_scores>();
      block.hold(s);
      differentiate(0);
      unsigned n = 0;
      for (tiles.next(); tiles.valid(); tiles.next()) {
        ++n;
        Base::wait_full(block, n);
        turns.wait(block, n == 1);
        begin_gradients(n - 1);
        Base::template begin_scores<T>(block, s, group_row, 0, n);
        block.wgmma_commit();
        block.template wgmma_wait<1>();
        hold_operands();
        if (lane == 0) block.barrier_arrive(Base::empty(n - 1));
        begin_dp(n);
        turns.pass(block);
        block.template wgmma_wait<beside_scores>();
        block.hold(s);
        differentiate(n);
      }
      begin_gradients(n);
      block.template wgmma_wait<0>();
      if (gives_k) block.hold(dk);
      if (gives_v) block.hold(dv);
      hold_operands();
      if (n > 0) turns.end(block);
    }
    // No warp of the group reads its keys any more.
    block.barrier_group(1 + static_cast<int>(group_row / 64), group_threads);
    const auto [head, key, count] = here();
    const auto store = [&, head = head, key = key, count = count](
                           const float(&gradient)[HeadDim / 8][4], float factor, unsigned tile,
                           const HeadRows<T>& target) {
      const float factors[2] = {factor, factor};
      Frame::Copies::template store<TileKv>(
          block, gradient, factors, tile, first_key, this->head_dim, count,
          [&](int r) { return target.row(head.batch, head.kv_head, key + r); });
    };
    if (gives_k) store(dk, this->scores.scale, Base::own_tile(0), this->dk);
    if (gives_v) store(dv, 1.0F, Base::own_tile(gives_k ? 1 : 0), this->dv);
  }
};

/// dQ, after BackwardStatistics.
template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule>
struct FlashWgmmaBackwardQ : WgmmaBackward<TensorCoreBackward<T, HeadDim, TileQ, TileKv, Rule>,
                                           TileQ / 64, HeadDim, TileKv, 0> {
  using Frame = TensorCoreBackward<T, HeadDim, TileQ, TileKv, Rule>;
  using Base = WgmmaBackward<Frame, TileQ / 64, HeadDim, TileKv, 0>;
  using Base::group_threads;
  using Base::threads;
  using typename Frame::Pair;

  LongestFirst order;
  std::int64_t blocks;  ///< thread blocks of the grid

  FlashWgmmaBackwardQ(const BackwardArgs& args, void* workspace, const Rule& rule = {})
      : Base(args, workspace, rule),
        order(LongestFirst::evenly(this->heads(), (this->rows + TileQ - 1) / TileQ,
                                   std::int64_t{this->keys} * HeadDim * 4)),
        blocks(order.tiles()) {}

  /// Block `index` of the grid: in a section of heads the last rows, which see the most keys under a
  /// causal mask, first.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    Base::init(block);
    const auto [head, begin, count] = item(static_cast<unsigned>(index));
    const Mask mask = this->scores.masks.of(head.batch);
    const auto group = static_cast<unsigned>(this->group);
    LiveKeys<int> tiles(mask, static_cast<unsigned>(begin) / group,
                        static_cast<unsigned>(begin + count - 1) / group, TileKv);
    if (block.thread() < group_threads) {
      block.template decrease_registers<Base::loading_registers>();
      Base::load(block, tiles, [&, head = head, begin = begin, count = count](unsigned n) {
        if (n == 0) {
          this->template load_rows<group_threads>(block, Base::own_tile(0), Base::own_tile(1),
                                                  head.batch, head.kv_head, begin, count);
        }
        this->template load_keys<group_threads>(block, Base::stage_tile(0, n),
                                                Base::stage_tile(1, n), head.batch, head.kv_head,
                                                tiles.key(), tiles.columns());
      });
    } else {
      block.template increase_registers<Base::computing_registers>();
      compute(block, static_cast<unsigned>(index), tiles);
    }
  }

 private:
  struct Item {
    typename Frame::HeadPair head;
    int begin, count;  ///< packed rows
  };
  KOKKOS_INLINE_FUNCTION Item item(unsigned index) const {
    const LongestFirst::Tile at = order.at(index);
    const int begin = static_cast<int>(at.row_tile) * TileQ;
    return {this->head_pair(at.head), begin, Kokkos::min(TileQ, this->rows - begin)};
  }

  /// A computing warpgroup: the rows of the tile from 64 times its number on. Values that the loop
  /// seldom needs are computed again from `index`, to save registers.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void compute(Block& block, unsigned index, LiveKeys<int>& tiles) const {
    const unsigned thread = block.thread() - group_threads;
    const unsigned lane = thread % tile::warp_size;
    const unsigned group_row = thread / group_threads * 64;
    const unsigned first_row = thread / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);
    const typename Base::GroupTurns turns{static_cast<int>(group_row / 64)};
    const auto here = [&] { return item(Block::computed_here(index)); };
    const RowStatistics own = statistics_of_rows(item(index), row);
    float dq[HeadDim / 8][4];
    float s[TileKv / 8][4];
    float dp[TileKv / 8][4];
    std::uint32_t ds[TileKv / 16][4];
    clear(dq);
    clear(s);
    clear(dp);
    const auto differentiate = [&](unsigned n) {
      const int key = tiles.key();
      this->differentiate(
          block, s, dp, tiles.state() != TileState::full, [&](int) { return own; },
          [](int i) { return i / 2; },
          [&](const Item& at, int m, int i) {
            return Pair{at.begin + row + i / 2 * 8, key + fragment_column(lane, m, i)};
          },
          [&](float(&shown)[TileKv / 8][4]) {
            const Item at = here();
            const EntryScores<T, Rule> scores = this->scores.of(at.head.batch);
            const PackedRows packed{at.head.kv_head, this->group, at.begin};
            FragmentRows<T, Rule>(scores, packed, row, at.count, lane).hide(shown, key);
          },
          [&] {
            Base::wait_full(block, n);  // over: a branch, which keeps the next wait below P
            block.template wgmma_wait<0>();
            block.hold(dp);
          },
          here);
      Base::template round<T>(block, ds, dp);
    };
    const auto begin_gradients = [&](unsigned n) {
      Base::template begin_gradient<T>(block, dq, ds, 0, n);
      block.wgmma_commit();
    };
    const auto hold_operands = [&] { block.hold(ds); };
    unsigned n = 0;
    for (; tiles.valid(); tiles.next(), ++n) {
      Base::wait_full(block, n);
      if (n > 0) {
        turns.wait(block, n == 1);
        begin_gradients(n - 1);
      }
      Base::template begin_scores<T>(block, s, group_row, 0, n);
      block.wgmma_commit();
      if (n > 0) {
        block.template wgmma_wait<1>();
        hold_operands();
        if (lane == 0) block.barrier_arrive(Base::empty(n - 1));
      }
      Base::template begin_scores<T>(block, dp, group_row, 1, n);
      block.wgmma_commit();
      if (n > 0) turns.pass(block);
      block.template wgmma_wait<1>();
      block.hold(s);
      differentiate(n);
    }
    if (n > 0) {
      begin_gradients(n - 1);
      block.template wgmma_wait<0>();
      block.hold(dq);
      hold_operands();
      if (n > 1) turns.end(block);
    }
    // No warp of the group reads its queries any more.
    block.barrier_group(1 + static_cast<int>(group_row / 64), group_threads);
    const auto [head, begin, count] = here();
    const float factor[2] = {this->scores.scale, this->scores.scale};
    Frame::Copies::template store<TileQ>(
        block, dq, factor, Base::own_tile(0), first_row, this->head_dim, count,
        [&, head = head, begin = begin](int r) {
          return this->packed_row(this->dq, head.batch, head.kv_head, begin + r);
        });
  }

  /// The statistics of rows `row` and `row` + 8 of the tile, zeros for rows that are not there.
  KOKKOS_INLINE_FUNCTION RowStatistics statistics_of_rows(const Item& at, int row) const {
    RowStatistics own{};
    for (int half = 0; half < 2; ++half) {
      const int r = at.begin + row + 8 * half;
      if (r >= this->rows) continue;
      const RowStatistics& pair = this->statistics_of(at.head.batch, at.head.kv_head)[r / 2];
      own.shift[half] = pair.shift[r % 2];
      own.low[half] = pair.low[r % 2];
      own.delta[half] = pair.delta[r % 2];
    }
    return own;
  }
};

}  // namespace katt::attention::impl
