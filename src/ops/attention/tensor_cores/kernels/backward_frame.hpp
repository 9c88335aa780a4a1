#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/tensor_cores/kernels/frame.hpp"
#include "tile/cuda/fragments.hpp"

/// Base of the backward kernels on tensor cores: the statistics of the query rows, which one
/// kernel computes and the others read, and P and dS from scores and dP in accumulators.
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

/// Bytes of the statistics of all rows: the workspace of the kernels.
inline std::size_t backward_statistics_bytes(const BackwardArgs& args) {
  const std::int64_t packed = args.seq_q() * (args.heads() / args.kv_heads());
  return static_cast<std::size_t>(args.batch() * args.kv_heads() * ((packed + 1) / 2)) *
         sizeof(RowStatistics);
}

/// Arguments of the kernels.
template <class T, int HeadDim, int TileQ, int TileKv, class Rule>
struct TensorCoreBackward : BackwardProblem<T, Rule> {
  static_assert(TileQ % 16 == 0 && TileKv % 16 == 0);
  using Copies = RowCopies<T, HeadDim>;
  using Scores = EntryScores<T, Rule>;
  using Place = typename Scores::template Place<float>;
  using Packed = PackedRowsOf<std::uint32_t, tile::Divider>;

  RowStatistics* statistics;  ///< (batch, kv_heads, row_pairs)
  int group;                  ///< those of the problem in 32 bits, which registers are few for
  int rows;
  int keys;
  tile::Divider by_group, by_kv_heads;

  TensorCoreBackward(const BackwardArgs& args, void* workspace, const Rule& rule)
      : BackwardProblem<T, Rule>(args, rule),
        statistics(static_cast<RowStatistics*>(workspace)),
        group(static_cast<int>(BackwardProblem<T, Rule>::group)),
        rows(static_cast<int>(BackwardProblem<T, Rule>::rows)),
        keys(static_cast<int>(args.seq_kv())),
        by_group(divider(group)),
        by_kv_heads(divider(this->kv_heads)) {}

  /// The tensors of a (batch, K/V head).
  KOKKOS_INLINE_FUNCTION RowStatistics* statistics_of(std::int64_t batch,
                                                      std::int64_t kv_head) const {
    return statistics + (batch * this->kv_heads + kv_head) * ((rows + 1) / 2);
  }

  /// Row r of a tensor of queries, packed from `begin` on; see PackedRows.
  template <class U>
  KOKKOS_INLINE_FUNCTION U* packed_row(const HeadRows<U>& tensor, std::int64_t batch,
                                       std::int64_t kv_head, int r) const {
    const Packed packed{kv_head, by_group, static_cast<std::uint32_t>(r)};
    return tensor.row(batch, packed.head(0), packed.query(0));
  }
  /// Begins to copy `count` packed rows of a tensor of queries from `begin` on.
  template <int Threads, class Block>
  KOKKOS_INLINE_FUNCTION void load_rows_of(Block& block, unsigned target,
                                           const HeadRows<const T>& tensor, std::int64_t batch,
                                           std::int64_t kv_head, int begin, int count) const {
    Copies::template load<Threads, TileQ>(
        block, block.thread(), target, this->head_dim, count, tensor.data, [&](int r) {
          return r < count ? packed_row(tensor, batch, kv_head, begin + r) : tensor.data;
        });
  }
  /// The rows of q and dout.
  template <int Threads, class Block>
  KOKKOS_INLINE_FUNCTION void load_rows(Block& block, unsigned q_tile, unsigned dout_tile,
                                        std::int64_t batch, std::int64_t kv_head, int begin,
                                        int count) const {
    load_rows_of<Threads>(block, q_tile, this->q, batch, kv_head, begin, count);
    load_rows_of<Threads>(block, dout_tile, this->dout, batch, kv_head, begin, count);
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

  struct HeadPair {
    std::int64_t batch, kv_head;
  };
  /// Pair `index` of batch entries × K/V heads.
  KOKKOS_INLINE_FUNCTION HeadPair head_pair(unsigned index) const {
    return {index / by_kv_heads, index % by_kv_heads};
  }
  /// A packed query row of a K/V head and a key, either beyond those that there are.
  struct Pair {
    int row, key;
  };

  /// P in place of the products S, and dS in place of dP. Element [n][i] takes elements which(i) of
  /// statistics(n); hide(s) makes hidden scores −inf; dp_ready()
  /// returns when dP is there. For score rules, at = here() has head, a HeadPair, and
  /// element [n][i] is that of pair_of(at, n, i).
  template <class Block, int N, class Statistics, class Which, class PairOf, class Hide,
            class Ready, class Here>
  KOKKOS_INLINE_FUNCTION void differentiate(const Block& /*block*/, float (&s)[N][4],
                                            float (&dp)[N][4], bool partial,
                                            const Statistics& statistics_at, const Which& which,
                                            const PairOf& pair_of, const Hide& hide,
                                            const Ready& dp_ready, const Here& here) const {
    const ScoreRules<T, Rule>& scores = this->scores;
    const bool folded = scores.folded();
    if (!folded) {
      dp_ready();
      // One thing after the other over all scores, as in FragmentSoftmax.
      KATT_UNROLL for (int n = 0; n < N; ++n) {
        const RowStatistics row = statistics_at(n);
        KATT_UNROLL for (int i = 0; i < 4; ++i) {
          float slope;
          s[n][i] = scores.capped(s[n][i], slope);
          dp[n][i] = (dp[n][i] - row.delta[which(i)]) * slope;
        }
      }
      if (scores.placed() || scores.bias) move(here(), s, dp, pair_of);
    }
    if (partial) hide(s);
    const float factor = scores.factor();
    const float subtract = folded ? 1.0F : 0.0F;
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      const RowStatistics row = statistics_at(n);
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        s[n][i] =
            Block::exp2(Kokkos::fma(s[n][i] - row.shift[which(i)], factor, -row.low[which(i)]));
      }
    }
    dp_ready();
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      const RowStatistics row = statistics_at(n);
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        dp[n][i] = s[n][i] * Kokkos::fma(-subtract, row.delta[which(i)], dp[n][i]);
      }
    }
  }

  /// The second part of score() and the bias, and dP times the slope.
  template <class At, int N, class PairOf>
  KOKKOS_INLINE_FUNCTION void move(const At& at, float (&s)[N][4], float (&dp)[N][4],
                                   const PairOf& pair_of) const {
    const Scores scores = this->scores.of(at.head.batch);
    const auto packed_of = [&](const Pair& pair) {
      return Packed{at.head.kv_head, by_group,
                    static_cast<std::uint32_t>(Kokkos::min(pair.row, rows - 1))};
    };
    // Loads without a condition: addresses of conditional ones take registers of the whole loop.
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        const Pair pair = pair_of(at, n, i);
        const Packed packed = packed_of(pair);
        if (scores.placed()) {
          Place place = tile::place_of_columns<float>(scores.row(packed.head(0), packed.query(0)));
          place.column = static_cast<float>(pair.key);
          float slope = 1.0F;
          s[n][i] = scores.moved(s[n][i], place, 0, slope);
          dp[n][i] *= slope;
        }
        if (scores.bias) {
          const T* bias = scores.bias.row(at.head.batch, packed.head(0), packed.query(0));
          const float moved = scores.biased(s[n][i], bias[Kokkos::min(pair.key, keys - 1)]);
          s[n][i] = pair.row < rows ? moved : s[n][i];
        }
      }
    }
  }

  /// Visibility of the packed rows from `row` on, for the lane's keys, own_key and own_key + 8.
  KOKKOS_INLINE_FUNCTION VisibleScores visible_rows(const Mask& mask, int own_key, int row,
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
