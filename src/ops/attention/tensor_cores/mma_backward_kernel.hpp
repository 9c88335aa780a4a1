#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/tensor_cores/frame.hpp"
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

/// RowShift of two neighbouring packed query rows, and their Δ: two asynchronous copies.
struct alignas(16) RowShifts {
  float shift[2];
  float low[2];
};
struct alignas(16) RowDeltas {
  float delta[2];
};
struct RowStatistics : RowShifts, RowDeltas {};
static_assert(sizeof(RowStatistics) == 32);

/// Bytes of the statistics of all rows: the workspace of the two kernels.
inline std::size_t backward_statistics_bytes(const BackwardArgs& args) {
  const std::int64_t packed = args.seq_q() * (args.heads() / args.kv_heads());
  return static_cast<std::size_t>(args.batch() * args.kv_heads() * ((packed + 1) / 2)) *
         sizeof(RowStatistics);
}

/// Arguments of both kernels.
template <class T, int HeadDim, int TileQ, int TileKv, class Rule>
struct MmaBackward : BackwardProblem<T, Rule> {
  static_assert(TileQ % 16 == 0 && TileKv % 16 == 0);
  using Copies = RowCopies<T, HeadDim>;
  using Scores = EntryScores<T, Rule>;
  using Place = typename Scores::template Place<float>;

  RowStatistics* statistics;  ///< (batch, kv_heads, row_pairs)
  int group;                  ///< those of the problem in 32 bits, which registers are few for
  int rows;
  int keys;

  MmaBackward(const BackwardArgs& args, void* workspace, const Rule& rule)
      : BackwardProblem<T, Rule>(args, rule),
        statistics(static_cast<RowStatistics*>(workspace)),
        group(static_cast<int>(BackwardProblem<T, Rule>::group)),
        rows(static_cast<int>(BackwardProblem<T, Rule>::rows)),
        keys(static_cast<int>(args.seq_kv())) {}

  /// The tensors of a (batch, K/V head).
  KOKKOS_INLINE_FUNCTION RowStatistics* statistics_of(std::int64_t batch,
                                                      std::int64_t kv_head) const {
    return statistics + (batch * this->kv_heads + kv_head) * ((rows + 1) / 2);
  }

  /// Row r of a tensor of queries, packed from `begin` on; see PackedRows.
  template <class U>
  KOKKOS_INLINE_FUNCTION U* packed_row(const HeadRows<U>& tensor, std::int64_t batch,
                                       std::int64_t kv_head, int r) const {
    const auto row = static_cast<unsigned>(r);
    const auto divisor = static_cast<unsigned>(group);
    return tensor.row(batch, kv_head * group + row % divisor, row / divisor);
  }
  /// Begins to copy `count` packed rows of q and dout from `begin` on.
  template <int Threads, class Block>
  KOKKOS_INLINE_FUNCTION void load_rows(Block& block, unsigned q_tile, unsigned dout_tile,
                                        std::int64_t batch, std::int64_t kv_head, int begin,
                                        int count) const {
    const auto load = [&](unsigned target, const HeadRows<const T>& tensor) {
      Copies::template load<Threads, TileQ>(
          block, block.thread(), target, this->head_dim, count, tensor.data, [&](int r) {
            return r < count ? packed_row(tensor, batch, kv_head, begin + r) : tensor.data;
          });
    };
    load(q_tile, this->q);
    load(dout_tile, this->dout);
  }
  template <int Threads, class Block>
  KOKKOS_INLINE_FUNCTION void load_keys(Block& block, unsigned k_tile, unsigned v_tile,
                                        std::int64_t batch, std::int64_t kv_head, int key,
                                        int count) const {
    load_keys_of<HeadDim, Threads, TileKv>(block, block.thread(), k_tile, this->head_dim, this->k,
                                           batch, kv_head, key, count);
    load_keys_of<HeadDim, Threads, TileKv>(block, block.thread(), v_tile, this->head_dim, this->v,
                                           batch, kv_head, key, count);
  }

  /// A packed query row of a K/V head and a key, either beyond those that there are.
  struct Pair {
    int row, key;
  };

  /// P in place of the products S, and dS in place of dP. Element [n][i] is that of pair_of(n, i),
  /// with the elements which(i) of statistics(n); hide(s) makes hidden scores −inf.
  template <class Block, int N, class Statistics, class Which, class PairOf, class Hide>
  KOKKOS_INLINE_FUNCTION void differentiate(const Block& /*block*/, const Scores& scores,
                                            std::int64_t kv_head, float (&s)[N][4],
                                            float (&dp)[N][4], bool partial,
                                            const Statistics& statistics_at, const Which& which,
                                            const PairOf& pair_of, const Hide& hide) const {
    const bool folded = scores.folded();
    const bool placed = scores.placed() || scores.bias;
    if (!folded) {
      KATT_UNROLL for (int n = 0; n < N; ++n) {
        const RowStatistics row = statistics_at(n);
        KATT_UNROLL for (int i = 0; i < 4; ++i) {
          const Pair pair = pair_of(n, i);
          const auto packed = static_cast<unsigned>(Kokkos::min(pair.row, rows - 1));
          const std::int64_t head = placed ? kv_head * group + packed % group : 0;
          const std::int64_t query = placed ? packed / group : 0;
          Place place = tile::place_of_columns<float>(scores.row(head, query));
          place.column = static_cast<float>(pair.key);
          float slope;
          s[n][i] = scores.score(s[n][i], place, 0, slope);
          if (scores.bias && pair.row < rows && pair.key < keys) {
            s[n][i] = scores.biased(s[n][i], scores.bias.row(scores.batch, head, query)[pair.key]);
          }
          dp[n][i] = (dp[n][i] - row.delta[which(i)]) * slope;
        }
      }
    }
    if (partial) hide(s);
    const float factor = scores.factor();
    const float subtract = folded ? 1.0F : 0.0F;
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      const RowStatistics row = statistics_at(n);
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        s[n][i] =
            Block::exp2(Kokkos::fma(s[n][i] - row.shift[which(i)], factor, -row.low[which(i)]));
        dp[n][i] = s[n][i] * Kokkos::fma(-subtract, row.delta[which(i)], dp[n][i]);
      }
    }
  }
};

/// dQ, and RowShift and Δ as the other kernel reads them.
template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule>
struct FlashMmaBackwardQ : MmaBackward<T, HeadDim, TileQ, TileKv, Rule> {
  using Frame = MmaBackward<T, HeadDim, TileQ, TileKv, Rule>;
  using typename Frame::Pair;

  static constexpr int threads = TileQ / 16 * tile::warp_size;
  static constexpr int shared_bytes = (2 * TileQ + 4 * TileKv) * HeadDim * 2;
  static constexpr int blocks_per_multiprocessor = 1;
  std::int64_t row_tiles;
  std::int64_t blocks;  ///< thread blocks of the grid

  FlashMmaBackwardQ(const BackwardArgs& args, void* workspace, const Rule& rule = {})
      : Frame(args, workspace, rule),
        row_tiles((this->rows + TileQ - 1) / TileQ),
        blocks(this->heads() * row_tiles) {}

  /// Block `index` of the grid: head-major, within a head from the last row tile, which sees the
  /// most keys under a causal mask, to the first.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    const int begin = static_cast<int>(row_tiles - 1 - index % row_tiles) * TileQ;
    const int count = Kokkos::min(TileQ, this->rows - begin);
    const std::int64_t kv_head = index / row_tiles % this->kv_heads;
    const std::int64_t batch = index / row_tiles / this->kv_heads;
    const PackedRows packed{kv_head, this->group, begin};
    const EntryScores<T, Rule> scores = this->scores.of(batch);
    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned first_row = block.thread() / tile::warp_size * 16;  // of the warp
    const int row = static_cast<int>(first_row + tile::accumulator_position(lane, 0).row);

    LiveKeys<int> tiles(scores.mask, packed.query(0), packed.query(count - 1), TileKv);
    if (tiles.valid()) {
      this->template load_rows<threads>(block, q_tile, dout_tile, batch, kv_head, begin, count);
      this->template load_keys<threads>(block, k_tile(0), v_tile(0), batch, kv_head, tiles.key(),
                                        tiles.columns());
      block.commit();
    }
    RowStatistics own = row_statistics(block, batch, kv_head, begin, row, count, lane);
    settle_shifts(block, scores, packed, own, row, count, first_row, lane);
    write_statistics(own, batch, kv_head, begin, row, lane);
    const FragmentRows<T, Rule> fragment(scores, packed, row, count, lane);
    float dq[HeadDim / 8][4];
    clear(dq);
    for (unsigned stage = 0; tiles.valid(); stage ^= 1U) {
      block.template wait<0>();
      block.barrier();  // this tile is here for all threads, and none reads the other stage
      const int key = tiles.key();
      const bool partial = tiles.state() != TileState::full;
      tiles.next();
      if (tiles.valid()) {
        this->template load_keys<threads>(block, k_tile(stage ^ 1U), v_tile(stage ^ 1U), batch,
                                          kv_head, tiles.key(), tiles.columns());
        block.commit();
      }
      float s[TileKv / 8][4];
      float dp[TileKv / 8][4];
      multiply_by_rows<T, HeadDim, TileQ>(block, s, q_tile, first_row, k_tile(stage), lane);
      multiply_by_rows<T, HeadDim, TileQ>(block, dp, dout_tile, first_row, v_tile(stage), lane);
      this->differentiate(
          block, scores, kv_head, s, dp, partial, [&](int) { return own; },
          [](int i) { return i / 2; },
          [&](int n, int i) {
            return Pair{begin + row + i / 2 * 8, key + fragment.column_of(n, i)};
          },
          [&](float(&shown)[TileKv / 8][4]) { fragment.hide(shown, key); });
      accumulate<T, HeadDim>(block, dq, dp, k_tile(stage), lane);
    }
    const float factor[2] = {scores.scale, scores.scale};
    Frame::Copies::template store<TileQ>(
        block, dq, factor, q_tile, first_row, this->head_dim, count,
        [&](int r) { return this->packed_row(this->dq, batch, kv_head, begin + r); });
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

  /// RowShift of the steep rows of the tile: largest score and sum over its keys, which pass through
  /// the second stage of K while the first tile of keys is on its way to the first.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void settle_shifts(Block& block, const EntryScores<T, Rule>& scores,
                                            const PackedRows& packed, RowStatistics& own, int row,
                                            int count, unsigned first_row, unsigned lane) const {
    const auto lse_of = [&](int half) {
      const int r = row + 8 * half;
      if (r >= count) return 0.0F;
      return this->lse(scores.batch, packed.head(r), packed.query(r));
    };
    if (!block.barrier_any(RowShift::is_steep(lse_of(0)) || RowShift::is_steep(lse_of(1)))) return;
    FragmentSoftmax<T, Rule> softmax(scores, packed, row, count, lane);
    LiveKeys<int> tiles(scores.mask, packed.query(0), packed.query(count - 1), TileKv);
    for (; tiles.valid(); tiles.next()) {
      load_keys_of<HeadDim, threads, TileKv>(block, block.thread(), k_tile(1), this->head_dim,
                                             this->k, scores.batch, packed.kv_head, tiles.key(),
                                             tiles.columns());
      block.commit();
      block.template wait<0>();
      block.barrier();
      float s[TileKv / 8][4];
      multiply_by_rows<T, HeadDim, TileQ>(block, s, q_tile, first_row, k_tile(1), lane);
      softmax.mask(s, tiles.state(), tiles.key(), tiles.columns());
      float rescale[2];
      softmax.probabilities(block, s, rescale);
      block.barrier();  // none reads these keys any more
    }
    softmax.finish(block);
    for (int half = 0; half < 2; ++half) {
      if (!RowShift::is_steep(lse_of(half))) continue;
      const RowShift of_row =
          RowShift::of_steep(lse_of(half), scores.unit(), softmax.largest(half), softmax.sum(half));
      own.shift[half] = of_row.shift;
      own.low[half] = of_row.low;
    }
  }

  /// To memory, for the other kernel.
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

/// dK and dV, after FlashMmaBackwardQ.
template <class T, int HeadDim, int TileQ, int TileKv, class Rule = NoRule>
struct FlashMmaBackwardKv : MmaBackward<T, HeadDim, TileQ, TileKv, Rule> {
  using Frame = MmaBackward<T, HeadDim, TileQ, TileKv, Rule>;
  using typename Frame::Pair;

  static constexpr int threads = TileKv / 16 * tile::warp_size;
  static constexpr int statistics_bytes = TileQ / 2 * static_cast<int>(sizeof(RowStatistics));
  static constexpr int shared_bytes = (4 * TileQ + 2 * TileKv) * HeadDim * 2 + 2 * statistics_bytes;
  static constexpr int blocks_per_multiprocessor = 1;
  static_assert(TileQ <= threads);
  std::int64_t key_tiles;
  std::int64_t blocks;  ///< thread blocks of the grid

  FlashMmaBackwardKv(const BackwardArgs& args, void* workspace, const Rule& rule = {})
      : Frame(args, workspace, rule),
        key_tiles((this->keys + TileKv - 1) / TileKv),
        blocks(this->heads() * key_tiles) {}

  /// Block `index` of the grid: head-major, within a head from the first keys, which the most rows
  /// see under a causal mask, to the last.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void run(Block& block, std::int64_t index) const {
    const int key = static_cast<int>(index % key_tiles) * TileKv;
    const std::int64_t kv_head = index / key_tiles % this->kv_heads;
    const std::int64_t batch = index / key_tiles / this->kv_heads;
    const EntryScores<T, Rule> scores = this->scores.of(batch);
    const int count = Kokkos::min(TileKv, this->keys - key);
    const int live = position<int>(scores.mask.interval.keys - key, count);  // none behind is read
    const unsigned lane = block.thread() % tile::warp_size;
    const unsigned first_key = block.thread() / tile::warp_size * 16;  // of the warp
    const int own_key = key + static_cast<int>(first_key + tile::accumulator_position(lane, 0).row);

    LiveQueries<int> tiles(scores.mask, key, key + count, this->group, this->rows, TileQ);
    if (tiles.valid()) {
      this->template load_keys<threads>(block, k_tile, v_tile, batch, kv_head, key, live);
      load_tile(block, 0, batch, kv_head, tiles);
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
      if (tiles.valid()) load_tile(block, stage ^ 1U, batch, kv_head, tiles);
      float s[TileQ / 8][4];
      float dp[TileQ / 8][4];
      multiply_by_rows<T, HeadDim, TileKv>(block, s, k_tile, first_key, q_tile(stage), lane);
      multiply_by_rows<T, HeadDim, TileKv>(block, dp, v_tile, first_key, dout_tile(stage), lane);
      this->differentiate(
          block, scores, kv_head, s, dp, partial,
          [&](int n) {
            const unsigned at =
                statistics_at(stage) +
                static_cast<unsigned>(fragment_column(lane, n, 0)) / 2 * sizeof(RowStatistics);
            return RowStatistics{block.template load_chunk<RowShifts>(at),
                                 block.template load_chunk<RowDeltas>(at + sizeof(RowShifts))};
          },
          [](int i) { return i % 2; },
          [&](int n, int i) {
            return Pair{row + fragment_column(lane, n, i), own_key + i / 2 * 8};
          },
          [&](float(&shown)[TileQ / 8][4]) {
            visible(scores.mask, own_key, row, lane).apply(shown, lane);
          });
      accumulate<T, HeadDim>(block, dv, s, dout_tile(stage), lane);
      accumulate<T, HeadDim>(block, dk, dp, q_tile(stage), lane);
    }
    const auto store = [&](const float(&gradient)[HeadDim / 8][4], float factor, unsigned tile,
                           const HeadRows<T>& target) {
      const float factors[2] = {factor, factor};
      Frame::Copies::template store<TileKv>(
          block, gradient, factors, tile, first_key, this->head_dim, count,
          [&](int r) { return target.row(batch, kv_head, key + r); });
    };
    store(dk, scores.scale, k_tile, this->dk);
    store(dv, 1.0F, v_tile, this->dv);
  }

 private:
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
  KOKKOS_INLINE_FUNCTION void load_tile(Block& block, unsigned stage, std::int64_t batch,
                                        std::int64_t kv_head, const LiveQueries<int>& tiles) const {
    const unsigned thread = block.thread();
    this->template load_rows<threads>(block, q_tile(stage), dout_tile(stage), batch, kv_head,
                                      tiles.row(), tiles.count());
    if (thread < TileQ) {  // two chunks a pair
      const auto* first = reinterpret_cast<const RowShifts*>(this->statistics_of(batch, kv_head));
      const int chunk = tiles.row() + static_cast<int>(thread);
      const bool live = chunk / 2 < (this->rows + 1) / 2;
      block.copy_async(statistics_at(stage) + thread * 16, live ? first + chunk : first, live);
    }
    block.commit();
  }

  /// Visibility of the packed rows from `row` on, for the lane's keys, own_key and own_key + 8.
  KOKKOS_INLINE_FUNCTION VisibleScores visible(const Mask& mask, int own_key, int row,
                                               unsigned lane) const {
    VisibleScores scores;
    const int queries = this->rows / this->group;
    for (int half = 0; half < 2; ++half) {
      const int j = own_key + 8 * half;
      scores.begin[half] = position<int>(mask.interval.query_begin(j), queries) * this->group - row;
      scores.end[half] = position<int>(mask.interval.query_end(j), queries) * this->group - row;
      scores.blocked[half] = 0;
      if (mask.blocks.blocks == nullptr) continue;
      scores.blocked[half] = blocked_columns<TileQ / 8>(lane, [&](int column) {
        const int packed = row + column;
        return packed < this->rows && j < mask.interval.keys &&
               !mask.blocks.visible(packed / this->group, j);
      });
    }
    return scores;
  }
};

}  // namespace katt::attention::impl
