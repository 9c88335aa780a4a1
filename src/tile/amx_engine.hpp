#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "tile/amx.hpp"
#include "tile/transpose.hpp"

/// Flash attention on AMX tiles. A block of 32 queries meets 32 keys at a time:
///
///   Sᵀ(32 keys × 32 queries)  = K·Qᵀ      depth · 4 tile products, stored as f32
///   Pᵀ = 2^(c·Sᵀ − m)                     vector unit, rounded to bf16 in pairs of keys
///   Oᵀ(head_dim × 32 queries) += Vᵀ·Pᵀ    after every `group` key blocks, 4 · group products for
///                                         32 dimensions
///
/// Transposed, a vector is 16 queries: the statistics are vertical, a row of keys is a row of A as
/// it lies in memory, and two rows of exponentials make one row of B without a shuffle.
///
/// The tile unit and the vector unit work at the same time: while the scores of key block n + 1 are
/// multiplied, and a part of Vᵀ·Pᵀ of the group before, the exponentials of block n are computed,
/// one pair of rows after every tile product. (The idea of overlapping them: FlashAttention-3, Shah
/// et al. 2024, arXiv:2407.08608, §3.2.) The running maximum moves only where scores exceed it by
/// more than 2^8, so that Oᵀ is rescaled rarely (FlashAttention-4 skips small moves likewise); the
/// sums are f32 and P ≤ 2^8 keeps its relative accuracy.
#if defined(KATT_AMX)
namespace katt::tile::amx {

inline constexpr int block = 32;  ///< queries, keys, and depth of a block
inline constexpr int tile_elements = tile_bytes / 2;
inline constexpr int tile_floats = tile_bytes / 4;
using HostVec = VecOf<Kokkos::DefaultHostExecutionSpace>;

/// Tiles of 32 dimensions that hold a head_dim.
constexpr int depth_tiles(std::int64_t head_dim) {
  return static_cast<int>((head_dim + depth - 1) / depth);
}

/// Reads `count` of 16 dwords, the others zero, from bf16 elements.
inline __m512i load_dwords(const bf16* source, int elements) {
  if (elements >= depth) return _mm512_loadu_si512(source);
  const __mmask32 mask = elements <= 0 ? 0 : (1U << static_cast<unsigned>(elements)) - 1U;
  return _mm512_maskz_loadu_epi16(mask, source);
}

/// target row i = column i of the 16 × 16 dwords in `square`.
inline void store_transposed(HostVec (&square)[16], bf16* target) {
  transpose(square);
  for (int i = 0; i < 16; ++i) {
    _mm512_storeu_ps(reinterpret_cast<float*>(target) + i * 16, static_cast<__m512>(square[i]));
  }
}

/// Packs 16 rows as a tile of B = rowsᵀ: dimensions by rows, in pairs of dimensions. row(r) is the
/// first of `elements` elements of row r, or nullptr for a row of zeros.
template <class Row>
void pack_transposed(const Row& row, int elements, bf16* target) {
  HostVec square[16];
  for (int r = 0; r < 16; ++r) {
    const bf16* source = row(r);
    square[r] = source == nullptr ? HostVec(0.0F)
                                  : HostVec(_mm512_castsi512_ps(load_dwords(source, elements)));
  }
  store_transposed(square, target);
}

/// Packs 16 rows as a tile of A, zero from row `rows` on.
inline void pack_rows(const bf16* source, std::int64_t stride, int rows, int elements,
                      bf16* target) {
  for (int r = 0; r < 16; ++r) {
    const __m512i row =
        r < rows ? load_dwords(source + r * stride, elements) : _mm512_setzero_si512();
    _mm512_storeu_si512(target + r * depth, row);
  }
}

/// Packs 32 rows × 16 dimensions as a tile of A, dimensions by rows, zero from row `rows` on.
inline void pack_columns(const bf16* source, std::int64_t stride, int rows, int elements,
                         bf16* target) {
  const __mmask16 mask = elements >= 16
                             ? 0xFFFF
                             : static_cast<__mmask16>((1U << static_cast<unsigned>(elements)) - 1U);
  const auto row = [&](int r) {
    return r < rows ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, source + r * stride))
                    : _mm512_setzero_si512();
  };
  HostVec square[16];
  for (int p = 0; p < 16; ++p) {
    square[p] = HostVec(
        _mm512_castsi512_ps(_mm512_or_si512(row(2 * p), _mm512_slli_epi32(row(2 * p + 1), 16))));
  }
  store_transposed(square, target);
}

/// 2^x for x ≤ 127 to a relative error of 2.6e-6 (minimax polynomial of degree 4 on [0, 1), by
/// Lawson's iteration), a thousandth of the rounding of a bf16; 2^−inf = 0.
KOKKOS_FORCEINLINE_FUNCTION __m512 exp2_bf16(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  __m512 p = _mm512_set1_ps(0x1.bb7cd4p-7F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.aa13fp-5F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee798ap-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d166p-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.00002cp+0F));
  return _mm512_scalef_ps(p, x);
}

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
      return exp2_bf16(_mm512_fmadd_ps(_mm512_load_ps(scores + row * 16), scale, minus_max));
    };
    const __m512 a = exponential(2 * p);
    const __m512 b = exponential(2 * p + 1);
    even = _mm512_add_ps(even, a);
    odd = _mm512_add_ps(odd, b);
    // Round to nearest, ties away from zero: the operands are not negative and finite.
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half), 16);
    const __m512i high = _mm512_add_epi32(_mm512_castps_si512(b), half);
    _mm512_store_si512(target + p * depth, _mm512_mask_blend_epi16(0xAAAAAAAAU, low, high));
  }

  /// Pairs that belong to step `i` of `steps`.
  KOKKOS_FORCEINLINE_FUNCTION void share(int i, int steps) {
    for (int p = 16 * i / steps; p < 16 * (i + 1) / steps; ++p) pair(p);
  }

  KOKKOS_FORCEINLINE_FUNCTION __m512 sum() const { return _mm512_add_ps(even, odd); }
};

struct NoExponentials {
  KOKKOS_FORCEINLINE_FUNCTION void share(int /*i*/, int /*steps*/) {}
};

/// One block of 32 queries and the keys that stream past it.
template <int Depth, int Group>
class QueryBlock {
 public:
  static constexpr std::size_t state_bytes =
      Depth * (2 + 4) * tile_bytes + 2 * block * sizeof(float);
  /// Below every finite score, and finite: 2^(−inf − lowest) is 0 and 2^(lowest − lowest) is 1, so
  /// that rows without a visible key need no case of their own.
  static constexpr float lowest = -0x1p126F;
  /// How far scores may exceed the running maximum before it moves.
  static constexpr float slack = 8.0F;

  /// What lives across calls for a block of queries.
  struct State {
    bf16* q;     ///< [depth][query tile 2] tiles of B
    float* o;    ///< [32 dimensions][dim tile 2][query tile 2] tiles
    float* max;  ///< 32
    float* sum;  ///< 32

    /// In state_bytes bytes, aligned to 64.
    explicit State(std::byte* bytes)
        : q(reinterpret_cast<bf16*>(bytes)),
          o(reinterpret_cast<float*>(bytes + Depth * 2 * tile_bytes)),
          max(o + Depth * 4 * tile_floats),
          sum(max + block) {}

    /// O = 0, no key seen.
    void clear() const {
      std::fill_n(o, Depth * 4 * tile_floats, 0.0F);
      std::fill_n(max, block, lowest);
      std::fill_n(sum, block, 0.0F);
    }
  };
  /// Buffers of the thread.
  struct Buffers {
    float* scores;  ///< 2 × 4 tiles
    bf16* p;        ///< 2 × Group × 2 tiles
  };

  QueryBlock(const State& state, const Buffers& buffers) : state_(state), buffers_(buffers) {}

  /// Scores of 32 more keys. k: [depth][key tile 2] tiles; v: two tiles of 16 dimensions, then
  /// those of the next 32 dimensions v_stride elements on. Before that, the scores of the block
  /// that was pushed last go through adjust_previous(scores), which masks them and returns the
  /// factor that puts them in base 2; scores lie as [query tile 2][32 keys][16 queries].
  template <class Adjust>
  void push(const bf16* k, const bf16* v, std::ptrdiff_t v_stride, const Adjust& adjust_previous) {
    float* next = buffers_.scores + (parity_ ^ 1) * 4 * tile_floats;
    if (!pending_) {
      NoExponentials none;
      scores(k, next, none);
    } else {
      const float scale = adjust_previous(buffers_.scores + parity_ * 4 * tile_floats);
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

  /// Softmax and output of all that was pushed.
  template <class Adjust>
  void finish(const Adjust& adjust_previous) {
    if (pending_) {
      const float scale = adjust_previous(buffers_.scores + parity_ * 4 * tile_floats);
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
  Exponentials exponentials(int tile, float scale) const {
    return {
        .scores = buffers_.scores + (parity_ * 4 + tile * 2) * tile_floats,
        .target = buffers_.p + ((current_ * Group + slots_) * 2 + tile) * tile_elements,
        .scale = _mm512_set1_ps(scale),
        .minus_max = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_load_ps(state_.max + tile * 16))};
  }

  void retire(const Exponentials& first, const Exponentials& second) {
    _mm512_store_ps(state_.sum, _mm512_add_ps(_mm512_load_ps(state_.sum), first.sum()));
    _mm512_store_ps(state_.sum + 16, _mm512_add_ps(_mm512_load_ps(state_.sum + 16), second.sum()));
    v_[current_][slots_] = pending_v_;
    if (++slots_ == Group) {
      current_ ^= 1;
      queued_ = Group;
      next_ = 0;
      slots_ = 0;
    }
  }

  /// Moves the maximum where this block of keys needs it.
  void make_room(float scale) {
    const float* s = buffers_.scores + parity_ * 4 * tile_floats;
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
      largest[t] = _mm512_mul_ps(
          _mm512_max_ps(_mm512_max_ps(part[0], part[1]), _mm512_max_ps(part[2], part[3])),
          _mm512_set1_ps(scale));
      grows = grows | _mm512_cmp_ps_mask(
                          largest[t],
                          _mm512_add_ps(_mm512_load_ps(state_.max + t * 16), _mm512_set1_ps(slack)),
                          _CMP_GT_OQ);
    }
    if (grows == 0) [[likely]]
      return;
    flush();
    for (int t = 0; t < 2; ++t) {
      const __m512 old = _mm512_load_ps(state_.max + t * 16);
      const __m512 now = _mm512_max_ps(old, largest[t]);
      const __m512 factor = exp2_bf16(_mm512_sub_ps(old, now));
      _mm512_store_ps(state_.max + t * 16, now);
      _mm512_store_ps(state_.sum + t * 16,
                      _mm512_mul_ps(_mm512_load_ps(state_.sum + t * 16), factor));
      for (int d = 0; d < Depth * 2; ++d) {
        float* o = state_.o + (d * 2 + t) * tile_floats;
        for (int i = 0; i < 16; ++i) {
          _mm512_store_ps(o + i * 16, _mm512_mul_ps(_mm512_load_ps(o + i * 16), factor));
        }
      }
    }
  }

  /// Sᵀ = K·Qᵀ, and exponentials of the block before beside it.
  template <class Beside>
  KOKKOS_FORCEINLINE_FUNCTION void scores(const bf16* k, float* target, Beside& beside) {
    const bf16* q = state_.q;
    zero<0>();
    zero<1>();
    zero<2>();
    zero<3>();
#pragma GCC unroll 8
    for (int d = 0; d < Depth; ++d) {
      load_once<4>(k + d * 2 * tile_elements);
      load<6>(q + d * 2 * tile_elements);
      product_bf16<0, 4, 6>();
      beside.share(d * 4, Depth * 4);
      load_once<5>(k + (d * 2 + 1) * tile_elements);
      product_bf16<1, 5, 6>();
      beside.share(d * 4 + 1, Depth * 4);
      load<7>(q + (d * 2 + 1) * tile_elements);
      product_bf16<2, 4, 7>();
      beside.share(d * 4 + 2, Depth * 4);
      product_bf16<3, 5, 7>();
      beside.share(d * 4 + 3, Depth * 4);
    }
    store<0>(target);
    store<1>(target + tile_floats);
    store<2>(target + 2 * tile_floats);
    store<3>(target + 3 * tile_floats);
  }

  /// Oᵀ += Vᵀ·Pᵀ for 32 dimensions and the first `count` slots of a buffer.
  template <class Beside>
  KOKKOS_FORCEINLINE_FUNCTION void values(int dims, int buffer, int count, Beside& beside) {
    float* o = state_.o + dims * 4 * tile_floats;
    const bf16* p = buffers_.p + buffer * Group * 2 * tile_elements;
    load<0>(o);
    load<1>(o + tile_floats);
    load<2>(o + 2 * tile_floats);
    load<3>(o + 3 * tile_floats);
    const auto step = [&](int slot) __attribute__((always_inline)) {
      const bf16* v = v_[buffer][slot] + dims * v_stride_;
      load_once<4>(v);
      load<6>(p + slot * 2 * tile_elements);
      product_bf16<0, 4, 6>();
      beside.share(slot * 4, Group * 4);
      load<7>(p + (slot * 2 + 1) * tile_elements);
      product_bf16<1, 4, 7>();
      beside.share(slot * 4 + 1, Group * 4);
      load_once<5>(v + tile_elements);
      product_bf16<2, 5, 6>();
      beside.share(slot * 4 + 2, Group * 4);
      product_bf16<3, 5, 7>();
      beside.share(slot * 4 + 3, Group * 4);
    };
    if constexpr (std::is_same_v<Beside, NoExponentials>) {
      for (int slot = 0; slot < count; ++slot) step(slot);
    } else {
#pragma GCC unroll 8
      for (int slot = 0; slot < Group; ++slot) step(slot);
    }
    store<0>(o);
    store<1>(o + tile_floats);
    store<2>(o + 2 * tile_floats);
    store<3>(o + 3 * tile_floats);
  }

  /// This step's share of the queued products, beside the exponentials.
  KOKKOS_FORCEINLINE_FUNCTION void values_share(Exponentials& beside) {
    if (queued_ == 0) {
      beside.share(0, 1);
      return;
    }
    const int end = (Depth * (slots_ + 1) + Group - 1) / Group;
    if (next_ == end) {
      beside.share(0, 1);
      return;
    }
    values(next_++, current_ ^ 1, Group, beside);
    NoExponentials none;
    while (next_ < end) values(next_++, current_ ^ 1, Group, none);
    if (next_ == Depth) queued_ = 0;
  }

  /// All products that are owed.
  void flush() {
    NoExponentials none;
    if (queued_ > 0) {
      while (next_ < Depth) values(next_++, current_ ^ 1, queued_, none);
      queued_ = 0;
    }
    if (slots_ > 0) {
      for (int d = 0; d < Depth; ++d) values(d, current_, slots_, none);
      slots_ = 0;
    }
  }

  State state_;
  Buffers buffers_;
  const bf16* v_[2][Group] = {};
  const bf16* pending_v_ = nullptr;
  std::ptrdiff_t v_stride_ = 0;
  int parity_ = 0;   ///< buffer of the pending scores
  int current_ = 0;  ///< buffer that the exponentials fill
  int slots_ = 0;    ///< blocks of keys in it
  int queued_ = 0;   ///< blocks of keys in the other one that wait for their products
  int next_ = 0;     ///< the next 32 dimensions of those
  bool pending_ = false;
};

}  // namespace katt::tile::amx
#endif
