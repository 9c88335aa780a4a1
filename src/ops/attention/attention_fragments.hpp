#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/attention/attention_scores.hpp"
#include "tile/fragments.hpp"

/// What the tensor-core kernels share: rows of tensors, the live key tiles of a tile of queries,
/// and mask and online softmax on scores that lie in the accumulators of matrix instructions.
namespace katt::attention::impl {

/// Rows of head_dim elements of a tensor (batch, head, seq, head_dim).
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride_batch = 0;
  std::int64_t stride_head = 0;
  std::int64_t stride_seq = 0;

  HeadRows() = default;
  template <bool Const>
  explicit HeadRows(const BasicTensorRef<4, Const>& tensor)
      : data(static_cast<T*>(tensor.data)),
        stride_batch(tensor.stride[0]),
        stride_head(tensor.stride[1]),
        stride_seq(tensor.stride[2]) {}

  KOKKOS_INLINE_FUNCTION T* row(std::int64_t b, std::int64_t head, std::int64_t i) const {
    return data + b * stride_batch + head * stride_head + i * stride_seq;
  }
};

/// Whether every row begins at a multiple of 16 bytes, as 128-bit accesses need it.
template <bool Const>
bool rows_are_aligned(const BasicTensorRef<4, Const>& tensor) {
  const auto per_chunk = static_cast<std::int64_t>(16 / size_of(tensor.dtype));
  for (int axis = 0; axis < 3; ++axis) {
    if (tensor.extent[axis] > 1 && tensor.stride[axis] % per_chunk != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}

/// The tiles of `size` keys of which queries first … last see something, in order.
class LiveTiles {
 public:
  KOKKOS_INLINE_FUNCTION LiveTiles(const Mask& mask, std::int64_t first, std::int64_t last,
                                   int size)
      : mask_(mask), first_(first), last_(last), size_(size), live_(mask.live(first, last)) {
    key_ = live_.begin / size * size;
    skip_dead();
  }

  KOKKOS_INLINE_FUNCTION bool valid() const { return key_ < live_.end; }
  KOKKOS_INLINE_FUNCTION void next() {
    key_ += size_;
    skip_dead();
  }

  KOKKOS_INLINE_FUNCTION std::int64_t key() const { return key_; }
  /// Keys of the tile, at most `size`: the last tile may be ragged.
  KOKKOS_INLINE_FUNCTION int columns() const {
    return static_cast<int>(Kokkos::min<std::int64_t>(size_, live_.end - key_));
  }
  /// full only where all `size` columns are visible.
  KOKKOS_INLINE_FUNCTION TileState state() const { return state_; }

 private:
  KOKKOS_INLINE_FUNCTION void skip_dead() {
    for (; valid(); key_ += size_) {
      state_ = mask_.tile(first_, last_, key_, key_ + columns());
      if (state_ == TileState::dead) continue;
      if (columns() < size_) state_ = TileState::partial;
      return;
    }
  }

  const Mask& mask_;
  std::int64_t first_, last_;
  int size_;
  KeyRange live_;
  std::int64_t key_ = 0;
  TileState state_ = TileState::dead;
};

/// Mask and online softmax of the two rows, lane / 4 and lane / 4 + 8 of a warp's sixteen, of which
/// a lane holds scores: s[n][i] is the score of row accumulator_position(lane, i).row and of column
/// 8·n + accumulator_position(lane, i).column of the key tile.
///
///   m′ = max(m, rowmax s),  p = 2^((s − m′)·c),  l = l·2^((m − m′)·c) + rowsum p
///
/// where c turns scores into base 2. Q lies in 16 bits in shared memory, unscaled; the scale enters
/// here, within the exponent where nothing else is done to the scores and it is positive, else by a
/// pass over them.
template <class T>
class FragmentSoftmax {
 public:
  /// For the lane's rows, `row` and `row` + 8 of the tile; rows from `rows` on count as the last.
  KOKKOS_INLINE_FUNCTION FragmentSoftmax(const ScoreRule<T>& rule, float scale, std::int64_t batch,
                                         const PackedRows& packed, int row, int rows, unsigned lane)
      : rule_(rule), lane_(lane) {
    folded_ = scale > 0.0F && rule.softcap == 0.0F && !rule.bias;
    factor_ = rule.query_scale(scale);
    exponent_ = folded_ ? factor_ : 1.0F;
    for (int half = 0; half < 2; ++half) {
      const int r = Kokkos::min(row + 8 * half, rows - 1);
      query_[half] = packed.query(r);
      bias_[half] = rule.bias ? rule.bias.row(batch, packed.head(r), query_[half]) : nullptr;
      begin_[half] = static_cast<int>(
          Kokkos::min(rule.mask.interval.begin(query_[half]), rule.mask.interval.keys));
      end_[half] =
          static_cast<int>(Kokkos::max<std::int64_t>(rule.mask.interval.end(query_[half]), 0));
      max_[half] = lowest;
      sum_[half] = 0.0F;
    }
  }

  /// Scale, softcap, bias and visibility of a tile of 8·N keys, of which `columns` exist.
  template <int N>
  KOKKOS_INLINE_FUNCTION void mask(float (&s)[N][4], TileState state, std::int64_t key,
                                   int columns) const {
    if (!folded_) prepare(s, key, columns);
    if (state == TileState::full) return;
    const std::uint32_t blocked[2] = {blocked_columns<N>(0, key), blocked_columns<N>(1, key)};
    const int first = static_cast<int>(key);
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        const int half = i / 2;
        const int column = first + column_of(n, i);
        const bool hidden = column < begin_[half] || column >= end_[half] ||
                            (blocked[half] >> (2 * n + i % 2) & 1U) != 0;
        if (hidden) s[n][i] = -Kokkos::Experimental::infinity_v<float>;
      }
    }
  }

  /// Scores to probabilities; `rescale` is what the sums of the two rows so far are to be
  /// multiplied with. The four lanes of a row agree on its maximum; the sum stays divided among
  /// them until finish().
  template <class Block, int N>
  KOKKOS_INLINE_FUNCTION void probabilities(const Block& block, float (&s)[N][4],
                                            float (&rescale)[2]) {
    KATT_UNROLL for (int half = 0; half < 2; ++half) {
      float high = max_[half];
      KATT_UNROLL for (int n = 0; n < N; ++n) {
        high = Kokkos::fmax(high, Kokkos::fmax(s[n][2 * half], s[n][2 * half + 1]));
      }
      high = Kokkos::fmax(high, block.shuffle_xor(high, 1));
      high = Kokkos::fmax(high, block.shuffle_xor(high, 2));
      rescale[half] = Block::exp2((max_[half] - high) * exponent_);
      max_[half] = high;
      // No visible key so far: every score is −inf, and 2^(−inf − 0) = 0.
      const float offset = high == lowest ? 0.0F : high * exponent_;
      float sum = 0.0F;
      KATT_UNROLL for (int n = 0; n < N; ++n) {
        KATT_UNROLL for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[n][i] = Block::exp2(Kokkos::fma(s[n][i], exponent_, -offset));
          sum += s[n][i];
        }
      }
      sum_[half] = Kokkos::fma(sum_[half], rescale[half], sum);
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
  /// After finish(): what O is to be multiplied with, 0 where no key was visible.
  KOKKOS_INLINE_FUNCTION float inverse_sum(int half) const {
    return sum_[half] == 0.0F ? 0.0F : 1.0F / sum_[half];
  }
  /// After finish(): natural logarithm of the sum of the exponentials.
  KOKKOS_INLINE_FUNCTION float log_sum_exp(int half) const {
    return sum_[half] == 0.0F ? -Kokkos::Experimental::infinity_v<float>
                              : (max_[half] * exponent_ + Kokkos::log2(sum_[half])) * ln2;
  }

 private:
  /// Below every finite score, and finite: see SimdEngine.
  static constexpr float lowest = -0x1p126F;

  KOKKOS_INLINE_FUNCTION int column_of(int n, int i) const {
    return 8 * n + static_cast<int>(tile::accumulator_position(lane_, i).column);
  }
  /// Bit 2·n + i is set where the block mask hides column_of(n, i) from a row. A loop of its own,
  /// not unrolled: it divides, and few calls have such a mask.
  template <int N>
  KOKKOS_INLINE_FUNCTION std::uint32_t blocked_columns(int half, std::int64_t key) const {
    static_assert(2 * N <= 32);
    const BlockMask& blocks = rule_.mask.blocks;
    std::uint32_t bits = 0;
    if (blocks.blocks == nullptr) return bits;
    KATT_NO_UNROLL for (int bit = 0; bit < 2 * N; ++bit) {
      const std::int64_t j = key + column_of(bit / 2, bit % 2);
      const bool inside = j >= begin_[half] && j < end_[half];
      if (inside && !blocks.visible(query_[half], j)) bits |= 1U << bit;
    }
    return bits;
  }

  template <int N>
  KOKKOS_INLINE_FUNCTION void prepare(float (&s)[N][4], std::int64_t key, int columns) const {
    const float cap = rule_.softcap;
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      KATT_UNROLL for (int i = 0; i < 4; ++i) {
        s[n][i] *= factor_;
        if (cap > 0.0F) s[n][i] = Kokkos::tanh(s[n][i] / cap) * (cap * log2e);
        if (bias_[i / 2] != nullptr && column_of(n, i) < columns) {
          s[n][i] += static_cast<float>(bias_[i / 2][key + column_of(n, i)]) * log2e;
        }
      }
    }
  }

  const ScoreRule<T>& rule_;
  unsigned lane_;
  bool folded_;
  float factor_;    ///< of the scores, where it is not folded into the exponent
  float exponent_;  ///< c
  std::int64_t query_[2];
  const T* bias_[2];
  int begin_[2];  ///< the keys that the interval mask leaves
  int end_[2];
  float max_[2];
  float sum_[2];
};

}  // namespace katt::attention::impl
