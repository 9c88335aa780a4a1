#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tile/bf16/bf16_units.hpp"

/// Flash attention on packed bf16 panels. A block of 32 queries meets 32 keys at a time:
///
///   Sᵀ(32 keys × 32 queries)  = K·Qᵀ      depth · 4 panel products, stored as f32
///   Pᵀ = 2^(c·(Sᵀ − m))                   vector unit, rounded to bf16 in pairs of keys
///   Oᵀ(head_dim × 32 queries) += Vᵀ·Pᵀ    after every `group` key blocks, 4 · group products for
///                                         32 dimensions
///
/// Transposed, a vector is 16 queries: the statistics are vertical, a row of keys is a row of A as
/// it lies in memory, and two rows of exponentials make one row of B without a shuffle.
///
/// A tile unit and the vector unit work at the same time: while the tile unit multiplies the scores
/// of key block n + 1 and a part of Vᵀ·Pᵀ of the group before, the vector unit computes the
/// exponentials of block n, one pair of rows after every few panel products. (The idea of
/// overlapping them: FlashAttention-3, Shah et al. 2024, arXiv:2407.08608, §3.2.) The running
/// maximum moves only where scores exceed it by more than 2^8, so that Oᵀ is rescaled rarely
/// (FlashAttention-4 skips small moves likewise); the sums are f32 and P ≤ 2^8 keeps its relative
/// accuracy.
#if defined(KATT_BF16_PANELS)
namespace katt::tile::bf16_panels {

/// The exponentials of 32 keys × 16 queries, a pair of keys at a call.
struct Exponentials {
  const float* scores;  ///< 32 rows of 16
  bf16* target;         ///< 16 rows of 16 pairs
  __m512 scale;
  __m512 minus_max;
  __m512 even = _mm512_setzero_ps();
  __m512 odd = _mm512_setzero_ps();

  KOKKOS_FORCEINLINE_FUNCTION void pair(int p) {
    const auto exponential = [&](int row) {
      return exp2_of_16_bits(
          _mm512_mul_ps(_mm512_add_ps(minus_max, _mm512_load_ps(scores + row * 16)), scale));
    };
    const __m512 a = exponential(2 * p);
    const __m512 b = exponential(2 * p + 1);
    even = _mm512_add_ps(even, a);
    odd = _mm512_add_ps(odd, b);
    _mm512_store_si512(target + p * depth, avx512::bf16_pairs_of_finite(a, b));
  }

  /// Pairs that belong to step `i` of `steps`.
  KOKKOS_FORCEINLINE_FUNCTION void share(int i, int steps) {
    for (int p = 16 * i / steps; p < 16 * (i + 1) / steps; ++p) pair(p);
  }

  KOKKOS_FORCEINLINE_FUNCTION __m512 sum() const { return _mm512_add_ps(even, odd); }
};

/// Bytes of QueryBlock::State: queries, output, maxima and sums, and a line for the flag.
constexpr std::size_t state_bytes(int depth) {
  return static_cast<std::size_t>(depth) * (2 + 4) * panel_bytes + 2 * block * sizeof(float) + 64;
}

/// One block of 32 queries and the keys that stream past it.
template <Unit U, int Depth>
class QueryBlock {
 public:
  static constexpr int max_group = 8;
  /// How far scores in base 2 may exceed the running maximum before it moves.
  static constexpr float slack = 8.0F;

  /// The state of a block of queries across calls.
  struct State {
    bf16* q;           ///< [depth][query panel 2] panels of B
    float* o;          ///< [32 dimensions][query panel 2][dim panel 2] panels
    float* max;        ///< 32
    float* sum;        ///< 32
    bool* has_output;  ///< o holds sums; before the first products it holds nothing

    /// Places the state in state_bytes(Depth) bytes, aligned to 64.
    explicit State(std::byte* bytes)
        : q(reinterpret_cast<bf16*>(bytes)),
          o(reinterpret_cast<float*>(bytes + Depth * 2 * panel_bytes)),
          max(o + Depth * 4 * panel_floats),
          sum(max + block),
          has_output(reinterpret_cast<bool*>(sum + block)) {}

    /// Starts with no key seen.
    void clear() const {
      std::fill_n(max, block, lowest_score);
      std::fill_n(sum, block, 0.0F);
      *has_output = false;
    }
    /// Sets O = 0 when no key was seen.
    void complete() const {
      if (!*has_output) std::fill_n(o, Depth * 4 * panel_floats, 0.0F);
    }
  };
  /// Buffers of the thread.
  struct Buffers {
    float* scores;  ///< 2 × 4 panels
    bf16* p;        ///< 2 × group × 2 panels
  };

  /// `group` key blocks are added to the output at a time: 1 … max_group, best 4 or 8.
  QueryBlock(const State& state, const Buffers& buffers, int group)
      : state_(state), buffers_(buffers), group_(group) {}

  /// Scores of 32 more keys. k: [depth][key panel 2] panels; v: two panels of 16 dimensions, then
  /// those of the next 32 dimensions v_stride elements on. Before that, the scores of the block
  /// that was pushed last go through adjust_previous(scores), which masks them and returns the
  /// factor that puts them in base 2; scores lie as [query panel 2][32 keys][16 queries].
  template <class Adjust>
  void push(const bf16* k, const bf16* v, std::ptrdiff_t v_stride, const Adjust& adjust_previous) {
    float* next = buffers_.scores + (parity_ ^ 1) * 4 * panel_floats;
    if (!pending_) {
      scores(k, next, nothing);
    } else {
      const float scale = adjust_previous(buffers_.scores + parity_ * 4 * panel_floats);
      make_room(scale);
      Exponentials first = exponentials(0, scale);
      scores(k, next, first);
      Exponentials second = exponentials(1, scale);
      values_share(second);
      retire(first, second);
    }
    pending_ = true;
    parity_ ^= 1;
    pending_v_ = v;
    v_stride_ = v_stride;
  }

  /// Completes the softmax and output of all pushed blocks.
  template <class Adjust>
  void finish(const Adjust& adjust_previous) {
    if (pending_) {
      const float scale = adjust_previous(buffers_.scores + parity_ * 4 * panel_floats);
      make_room(scale);
      Exponentials first = exponentials(0, scale);
      first.share(0, 1);
      Exponentials second = exponentials(1, scale);
      values_share(second);
      retire(first, second);
      pending_ = false;
    }
    flush();
  }

 private:
  Exponentials exponentials(int panel, float scale) const {
    return {
        .scores = buffers_.scores + (parity_ * 4 + panel * 2) * panel_floats,
        .target = probabilities(current_, slots_) + panel * panel_elements,
        .scale = _mm512_set1_ps(scale),
        .minus_max = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_load_ps(state_.max + panel * 16))};
  }

  void retire(const Exponentials& first, const Exponentials& second) {
    _mm512_store_ps(state_.sum, _mm512_add_ps(_mm512_load_ps(state_.sum), first.sum()));
    _mm512_store_ps(state_.sum + 16, _mm512_add_ps(_mm512_load_ps(state_.sum + 16), second.sum()));
    v_[current_][slots_] = pending_v_;
    if (++slots_ == group_) {
      current_ ^= 1;
      queued_ = group_;
      next_ = 0;
      slots_ = 0;
    }
  }

  /// Moves the maximum when this block of keys needs it.
  void make_room(float scale) {
    const float* s = buffers_.scores + parity_ * 4 * panel_floats;
    __m512 largest[2];
    __mmask16 grows = 0;
    for (int t = 0; t < 2; ++t) {
      __m512 part[4];
      for (int c = 0; c < 4; ++c) part[c] = _mm512_load_ps(s + (t * 32 + c) * 16);
      for (int j = 4; j < 32; j += 4) {
        for (int c = 0; c < 4; ++c) {
          part[c] = _mm512_max_ps(part[c], _mm512_load_ps(s + (t * 32 + j + c) * 16));
        }
      }
      largest[t] = _mm512_max_ps(_mm512_max_ps(part[0], part[1]), _mm512_max_ps(part[2], part[3]));
      const __m512 above = _mm512_sub_ps(largest[t], _mm512_load_ps(state_.max + t * 16));
      grows = grows | _mm512_cmp_ps_mask(_mm512_mul_ps(above, _mm512_set1_ps(scale)),
                                         _mm512_set1_ps(slack), _CMP_GT_OQ);
    }
    if (grows == 0) [[likely]]
      return;
    flush();
    const int dims = *state_.has_output ? Depth : 0;
    for (int t = 0; t < 2; ++t) {
      const __m512 old = _mm512_load_ps(state_.max + t * 16);
      const __m512 now = _mm512_max_ps(old, largest[t]);
      const __m512 factor =
          exp2_of_16_bits(_mm512_mul_ps(_mm512_sub_ps(old, now), _mm512_set1_ps(scale)));
      _mm512_store_ps(state_.max + t * 16, now);
      _mm512_store_ps(state_.sum + t * 16,
                      _mm512_mul_ps(_mm512_load_ps(state_.sum + t * 16), factor));
      for (int d = 0; d < dims; ++d) {
        float* o = state_.o + (d * 2 + t) * 2 * panel_floats;
        for (int i = 0; i < 32; ++i) {
          _mm512_store_ps(o + i * 16, _mm512_mul_ps(_mm512_load_ps(o + i * 16), factor));
        }
      }
    }
  }

  /// Sᵀ = K·Qᵀ, and exponentials of the block before beside it.
  template <class Beside>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const bf16* k, float* target, Beside& beside) {
    U::template product_2x2<Depth>([&](int d) { return k + d * 2 * panel_elements; },
                                   [&](int d) { return state_.q + d * 2 * panel_elements; }, Depth,
                                   false, target, beside);
  }

  /// Oᵀ += Vᵀ·Pᵀ for 32 dimensions and the first `count` slots of a buffer.
  template <int Count, class Beside>
  KOKKOS_FORCEINLINE_FUNCTION void values(int dims, int buffer, int count, Beside& beside) {
    const bf16* p = probabilities(buffer, 0);
    U::template product_2x2<Count>([&](int slot) { return v_[buffer][slot] + dims * v_stride_; },
                                   [&](int slot) { return p + slot * 2 * panel_elements; }, count,
                                   *state_.has_output, state_.o + dims * 4 * panel_floats, beside);
    if (dims == Depth - 1) *state_.has_output = true;
  }

  /// This step's share of the queued products, beside the exponentials.
  KOKKOS_FORCEINLINE_FUNCTION void values_share(Exponentials& beside) {
    const int end = queued_ == 0 ? next_ : (Depth * (slots_ + 1) + group_ - 1) / group_;
    if (next_ >= end) {
      beside.share(0, 1);
      return;
    }
    switch (group_) {
      case 2: values<2>(next_++, current_ ^ 1, 2, beside); break;
      case 4: values<4>(next_++, current_ ^ 1, 4, beside); break;
      case 8: values<8>(next_++, current_ ^ 1, 8, beside); break;
      default: beside.share(0, 1);
    }
    while (next_ < end) values<0>(next_++, current_ ^ 1, queued_, nothing);
    if (next_ == Depth) queued_ = 0;
  }

  /// Computes all outstanding products.
  void flush() {
    if (queued_ > 0) {
      while (next_ < Depth) values<0>(next_++, current_ ^ 1, queued_, nothing);
      queued_ = 0;
    }
    if (slots_ > 0) {
      for (int d = 0; d < Depth; ++d) values<0>(d, current_, slots_, nothing);
      slots_ = 0;
    }
  }

  bf16* probabilities(int buffer, int slot) const {
    return buffers_.p + (buffer * group_ + slot) * 2 * panel_elements;
  }

  State state_;
  Buffers buffers_;
  int group_;
  const bf16* v_[2][max_group] = {};
  const bf16* pending_v_ = nullptr;
  std::ptrdiff_t v_stride_ = 0;
  int parity_ = 0;   ///< buffer of the pending scores
  int current_ = 0;  ///< buffer that the exponentials fill
  int slots_ = 0;    ///< blocks of keys in it
  int queued_ = 0;   ///< blocks of keys in the other one that wait for their products
  int next_ = 0;     ///< the next 32 dimensions of these blocks
  bool pending_ = false;
};

}  // namespace katt::tile::bf16_panels
#endif
