#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "ops/attention/problem.hpp"
#include "tile/cuda/fragments.hpp"

/// Parts that the tensor-core kernels share: mask and online softmax on scores in the accumulators
/// of matrix instructions. Positions are 32-bit, to save registers: seq_q and seq_kv must be below
/// 2^31.
namespace katt::attention::impl {

/// True when every row begins at a multiple of 16 bytes, as 128-bit accesses require.
template <bool Const>
bool rows_are_aligned(const BasicTensorRef<4, Const>& tensor) {
  const auto per_chunk = static_cast<std::int64_t>(16 / size_of(tensor.dtype));
  for (int axis = 0; axis < 3; ++axis) {
    if (tensor.extent[axis] > 1 && tensor.stride[axis] % per_chunk != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}

/// The column, of a tile whose blocks of 16 × 8 are s[n], of score s[n][i] of a lane.
KOKKOS_INLINE_FUNCTION int fragment_column(unsigned lane, int n, int i) {
  return 8 * n + static_cast<int>(tile::accumulator_position(lane, i).column);
}

/// The visible scores among a lane's scores of its two rows, lane / 4 and lane / 4 + 8: the columns
/// begin ≤ c < end whose bit in `blocked` is not set. Bit 2·n + i mod 2 is that of s[n][i].
template <class Bits>
struct VisibleScoresIn {
  int begin[2];
  int end[2];
  Bits blocked[2];

  /// The others become −inf.
  template <int N>
  KOKKOS_INLINE_FUNCTION void apply(float (&s)[N][4], unsigned lane) const {
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        const int half = i / 2;
        const int column = fragment_column(lane, n, i);
        const bool hidden = column < begin[half] || column >= end[half] ||
                            (blocked[half] >> (2 * n + i % 2) & 1U) != 0;
        if (hidden) s[n][i] = -Kokkos::Experimental::infinity_v<float>;
      }
    }
  }
};
/// For up to 128 keys, and for 8·N keys.
using VisibleScores = VisibleScoresIn<std::uint32_t>;
template <int N>
using BlockedBits = std::conditional_t<N <= 16, std::uint32_t, std::uint64_t>;

/// Bits of VisibleScores::blocked for a row: hidden(column) says whether the block mask hides one.
/// A loop of its own, not unrolled: it divides, and few calls have such a mask.
template <int N, class Hidden>
KOKKOS_INLINE_FUNCTION BlockedBits<N> blocked_columns(unsigned lane, const Hidden& hidden) {
  static_assert(2 * N <= 64);
  BlockedBits<N> bits = 0;
  KATT_NO_UNROLL for (int bit = 0; bit < 2 * N; ++bit) {
    if (hidden(fragment_column(lane, bit / 2, bit % 2))) bits |= BlockedBits<N>{1} << bit;
  }
  return bits;
}

/// The two packed query rows that a lane holds scores of, where the rows of a tile are queries and
/// its columns keys. Group as in PackedRowsOf.
template <class T, class Rule, class Group = unsigned>
class FragmentRows {
 public:
  /// For the lane's rows, `row` and `row` + 8 of the tile; rows from `rows` on count as the last.
  template <class Packed>
  KOKKOS_INLINE_FUNCTION FragmentRows(const EntryScores<T, Rule>& scores, const Packed& packed,
                                      int row, int rows, unsigned lane)
      : scores_(scores),
        kv_head_(packed.kv_head),
        group_(static_cast<Group>(packed.group)),
        row_(static_cast<int>(packed.begin) + row),
        last_row_(static_cast<int>(packed.begin) + rows - 1),
        lane_(lane) {}

  KOKKOS_INLINE_FUNCTION const EntryScores<T, Rule>& scores() const { return scores_; }
  KOKKOS_INLINE_FUNCTION int query(int half) const {
    return static_cast<int>(packed_row(half) / group_);
  }
  KOKKOS_INLINE_FUNCTION std::int64_t head(int half) const {
    return kv_head_ * group_ + packed_row(half) % group_;
  }
  KOKKOS_INLINE_FUNCTION const T* bias_row(int half) const {
    return scores_.bias ? scores_.bias.row(scores_.batch, head(half), query(half)) : nullptr;
  }
  /// The place of the lane's scores of a row, without their column.
  KOKKOS_INLINE_FUNCTION auto place(int half) const {
    return tile::place_of_columns<float>(scores_.row(head(half), query(half)));
  }
  KOKKOS_INLINE_FUNCTION int column_of(int n, int i) const { return fragment_column(lane_, n, i); }

  /// Masks of 8·N keys from `key` on.
  template <int N>
  KOKKOS_INLINE_FUNCTION VisibleScoresIn<BlockedBits<N>> visible(int key) const {
    const IntervalMask& interval = scores_.mask.interval;
    VisibleScoresIn<BlockedBits<N>> scores;
    for (int half = 0; half < 2; ++half) {
      scores.begin[half] = position<int>(interval.begin(query(half)), interval.keys) - key;
      scores.end[half] = position<int>(interval.end(query(half)), interval.keys) - key;
    }
    scores.blocked[0] = blocked<N>(0, key);
    scores.blocked[1] = blocked<N>(1, key);
    return scores;
  }
  /// Hides from the compiler that the rows stay the same: it computes what depends on them again
  /// instead of keeping it in registers.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void compute_here() {
    row_ = static_cast<int>(Block::computed_here(static_cast<unsigned>(row_)));
  }

  template <int N>
  KOKKOS_INLINE_FUNCTION void hide(float (&s)[N][4], int key) const {
    visible<N>(key).apply(s, lane_);
  }

 private:
  template <int N>
  KOKKOS_INLINE_FUNCTION BlockedBits<N> blocked(int half, int key) const {
    const BlockMask& blocks = scores_.mask.blocks;
    if (blocks.blocks == nullptr) return 0;
    return blocked_columns<N>(lane_, [&](int column) {
      const int j = key + column;
      return j < scores_.mask.interval.keys && !blocks.visible(query(half), j);
    });
  }
  /// The packed row that the lane's row `half` stands for; see PackedRows.
  KOKKOS_INLINE_FUNCTION unsigned packed_row(int half) const {
    return static_cast<unsigned>(Kokkos::min(row_ + 8 * half, last_row_));
  }

  const EntryScores<T, Rule>& scores_;
  std::int64_t kv_head_;
  Group group_;   ///< query heads per K/V head
  int row_;       ///< packed row of the first half
  int last_row_;  ///< of the tile
  unsigned lane_;
};

/// Mask and online softmax of the two rows, lane / 4 and lane / 4 + 8 of a warp's sixteen, of which
/// a lane holds scores: s[n][i] is the score of row accumulator_position(lane, i).row and of column
/// 8·n + accumulator_position(lane, i).column of the key tile.
///
///   m′ = max(m, rowmax s),  p = 2^((s − m′)·c),  l = l·2^((m − m′)·c) + rowsum p
///
/// with c = ScoreUnit::factor, after a pass over the products when they need more than scaling.
template <class T, class Rule, class Group = unsigned>
class FragmentSoftmax {
 public:
  /// Rows as FragmentRows takes them.
  template <class Packed>
  KOKKOS_INLINE_FUNCTION FragmentSoftmax(const EntryScores<T, Rule>& scores, const Packed& packed,
                                         int row, int rows, unsigned lane)
      : rows_(scores, packed, row, rows, lane), folded_(scores.folded()), unit_(scores.unit()) {
    for (int half = 0; half < 2; ++half) {
      max_[half] = tile::lowest_score;
      sum_[half] = 0.0F;
    }
  }

  /// See FragmentRows.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void compute_rows_here() {
    rows_.template compute_here<Block>();
  }
  /// Score rule and visibility of a tile of 8·N keys, of which `columns` exist.
  template <int N>
  KOKKOS_INLINE_FUNCTION void mask(float (&s)[N][4], TileState state, int key, int columns) const {
    if (!folded_) prepare(s, key, columns);
    if (state != TileState::full) rows_.hide(s, key);
  }

  /// Scores to probabilities; `rescale` is the factor for the sums of the two rows so far. The four
  /// lanes of a row agree on its maximum; the sum stays divided among them until finish().
  template <class Block, int N>
  KOKKOS_INLINE_FUNCTION void probabilities(const Block& block, float (&s)[N][4],
                                            float (&rescale)[2]) {
    float shift[2];
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      float high = max_[half];
      KATT_UNROLL for (int n = 0; n < N; ++n) {
        high = Kokkos::fmax(high, Kokkos::fmax(s[n][2 * half], s[n][2 * half + 1]));
      }
      high = Kokkos::fmax(high, block.shuffle_xor(high, 1));
      high = Kokkos::fmax(high, block.shuffle_xor(high, 2));
      rescale[half] = Block::exp2((max_[half] - high) * unit_.factor);
      max_[half] = high;
      shift[half] = high * unit_.factor;
    }
    float sum[2] = {0.0F, 0.0F};
    const auto add = [&](const auto& exponent) {
      KATT_UNROLL for (int n = 0; n < N; ++n) {
        KATT_UNROLL for (int i = 0; i < 4; ++i) {
          s[n][i] = Block::exp2(exponent(s[n][i], i / 2));
          sum[i / 2] += s[n][i];
        }
      }
    };
    if (Kokkos::fmax(Kokkos::fabs(shift[0]), Kokkos::fabs(shift[1])) <= largest_shift) {
      add([&](float score, int half) { return Kokkos::fma(score, unit_.factor, -shift[half]); });
    } else {
      add([&](float score, int half) { return (score - max_[half]) * unit_.factor; });
    }
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      sum_[half] = Kokkos::fma(sum_[half], rescale[half], sum[half]);
    }
  }

  /// Adds up the sums of the lanes of a row. Call it once, after the last tile.
  template <class Block>
  KOKKOS_INLINE_FUNCTION void finish(const Block& block) {
    for (int half = 0; half < 2; ++half) {
      sum_[half] += block.shuffle_xor(sum_[half], 1);
      sum_[half] += block.shuffle_xor(sum_[half], 2);
    }
  }
  /// After finish(): the factor for O, 0 when no key was visible.
  KOKKOS_INLINE_FUNCTION float inverse_sum(int half) const {
    return sum_[half] == 0.0F ? 0.0F : 1.0F / sum_[half];
  }
  /// After finish(): natural logarithm of the sum of the exponentials.
  KOKKOS_INLINE_FUNCTION float log_sum_exp(int half) const {
    return unit_.lse(max_[half], sum_[half]);
  }
  KOKKOS_INLINE_FUNCTION float largest(int half) const { return max_[half]; }
  /// After finish().
  KOKKOS_INLINE_FUNCTION float sum(int half) const { return sum_[half]; }

 private:
  /// Up to this |m·c|, exponents are s·c − m·c, one instruction where (s − m)·c takes two: the
  /// product is exact, and the rounding of m·c, below 2^-14, is the same for the whole row.
  static constexpr float largest_shift = 1024.0F;

  template <int N>
  KOKKOS_INLINE_FUNCTION void prepare(float (&s)[N][4], int key, int columns) const {
    // One thing after the other over all scores: together they would keep more in registers than
    // there are.
    const EntryScores<T, Rule>& scores = rows_.scores();
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        float slope;
        s[n][i] = scores.capped(s[n][i], slope);
      }
    }
    if (scores.placed()) {
      KATT_UNROLL for (int half = 0; half < 2; ++half) {
        auto place = rows_.place(half);
        // In turn, so that a column is not kept for every n.
        place.column = static_cast<float>(rows_.column_of(0, 0));
        KATT_UNROLL for (int n = 0; n < N; ++n) {
          KATT_UNROLL for (int i = 2 * half; i < 2 * half + 2; ++i) {
            float slope = 1.0F;
            s[n][i] = scores.moved(s[n][i], place, key, slope);
            place.column += i % 2 == 0 ? 1.0F : 7.0F;
          }
        }
      }
    }
    if (scores.bias) {
      const T* bias[2] = {rows_.bias_row(0) + key, rows_.bias_row(1) + key};
      KATT_UNROLL for (int n = 0; n < N; ++n) {
        KATT_UNROLL for (int i = 0; i < 4; ++i) {
          const int column = rows_.column_of(n, i);
          if (column < columns) s[n][i] = scores.biased(s[n][i], bias[i / 2][column]);
        }
      }
    }
  }
  FragmentRows<T, Rule, Group> rows_;
  bool folded_;
  ScoreUnit unit_;  ///< its factor is c
  float max_[2];
  float sum_[2];
};

}  // namespace katt::attention::impl
