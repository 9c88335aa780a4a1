#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tile/bf16/bf16_panels.hpp"
#include "tile/engines/dots.hpp"
#include "tile/engines/row_blocks.hpp"
#include "tile/engines/warp_rows.hpp"
#include "tile/rows/elementwise.hpp"

/// Scores and softmax of RowEngine (tile/engines/row_engine.hpp) for up to eight query rows at a
/// time, with elements of every row in each vector: AVX-512 cores then need no sum over lanes.
///
///   scores    a vector is two elements of each of eight rows (of bf16 two pairs), and keys, of which as
///             many elements are spread over it, have an accumulator each:
///               for d: acc[key][r, 0 … 1] += q[r][d, d + 1] · k[key][d, d + 1]
///             then sixteen keys are transposed: S[r][key] = acc[key][r, 0] + acc[key][r, 1]
///   softmax   maxima, sums and factors of the earlier sums, of eight rows in a vector
namespace katt::tile::row_lanes {

#if defined(KATT_VEC_AVX512)

/// Rows of a block; a vector holds two elements of each.
inline constexpr int rows = 8;
/// Keys with an accumulator.
inline constexpr int keys = 16;

/// True when scores() multiplies elements of type T: f32, or bf16 on cores that are fast at dot
/// products. (Types that must be widened first gained nothing.)
template <class T>
inline constexpr bool multiplies = std::is_same_v<T, float> ||
                                   (std::is_same_v<T, bf16> && has_fast_dots);

/// True when scores() takes this many rows of this many elements. (Fewer rows would waste half of a
/// vector or more.)
template <class T>
KOKKOS_FORCEINLINE_FUNCTION constexpr bool takes(int row_count, int head_dim) {
  return multiplies<T> && row_count > rows / 2 && head_dim * static_cast<int>(sizeof(T)) % 8 == 0;
}

/// Query row r of a block, head_dim elements, as scores() reads it; row 0 clears all others.
template <class T>
void pack_query(const T* source, int head_dim, int r, float* out) {
  constexpr int bytes = 8;  // of a row in a vector
  const int vectors = head_dim * static_cast<int>(sizeof(T)) / bytes;
  const auto* from = reinterpret_cast<const std::byte*>(source);
  if (r == 0) std::memset(out, 0, static_cast<std::size_t>(vectors) * bytes * rows);
  for (int j = 0; j < vectors; ++j) std::memcpy(out + (j * rows + r) * 2, from + j * bytes, bytes);
}

/// The begins of rows, `stride` bytes apart.
struct ByteRows {
  const std::byte* data;
  std::int64_t stride;

  template <class T>
  ByteRows(const T* first, std::int64_t elements)
      : data(reinterpret_cast<const std::byte*>(first)),
        stride(elements * static_cast<std::int64_t>(sizeof(T))) {}
  ByteRows from(int row) const { return ByteRows(data + row * stride, stride); }
};

/// sums[i] = the products of key i, of `Keys` of `bytes` bytes, a multiple of eight, and the eight
/// rows of `q`, in two parts a row. Prefetches the next rows by ahead().
template <int Keys, bool Dots>
KOKKOS_FORCEINLINE_FUNCTION void score_keys(const ByteRows& key, row_blocks::RowsAhead& ahead,
                                            int bytes, const float* q, __m512* sums) {
  constexpr int line = 64;
  using Spread [[gnu::may_alias, gnu::aligned(1)]] = long long;
  // Rows stride and 2 · stride behind a register are addressed from it; GCC would rather keep sixteen
  // multiples of the stride, in vector registers.
  const std::int64_t stride = key.stride;
  const std::byte* base[(Keys + 2) / 3];
#pragma GCC unroll 6
  for (int i = 0; i < Keys; i += 3) {
    base[i / 3] = key.data + i * stride;
    asm("" : "+r"(base[i / 3]));
  }
  __m512 acc[Keys];
#pragma GCC unroll 16
  for (int i = 0; i < Keys; ++i) acc[i] = _mm512_setzero_ps();
  const auto add = [&](int byte) __attribute__((always_inline)) {
    const __m512i query = _mm512_loadu_si512(q);
    q += 16;
#pragma GCC unroll 16
    for (int i = 0; i < Keys; ++i) {
      const auto* at = reinterpret_cast<const Spread*>(base[i / 3] + i % 3 * stride + byte);
      const __m512i spread = _mm512_set1_epi64(*at);
      if constexpr (Dots) {
        acc[i] = add_dots(acc[i], query, spread);
      } else {
        acc[i] = _mm512_fmadd_ps(_mm512_castsi512_ps(query), _mm512_castsi512_ps(spread), acc[i]);
      }
    }
  };
  for (int begin = 0; begin < bytes; begin += line) {
#pragma GCC unroll 16
    for (int i = 0; i < Keys; ++i) ahead();
    if (begin + line <= bytes) {
#pragma GCC unroll 8
      for (int byte = 0; byte < line; byte += 8) add(byte);
    } else {
      for (int byte = 0; byte < bytes - begin; byte += 8) add(byte);
    }
#pragma GCC unroll 6
    for (int i = 0; i < Keys; i += 3) base[i / 3] += line;
  }
#pragma GCC unroll 16
  for (int i = 0; i < Keys; ++i) sums[i] = acc[i];
}

/// S[r][key] of `R` rows, `s_stride` apart, from the sums of sixteen keys.
template <int R>
KOKKOS_FORCEINLINE_FUNCTION void store_scores(const __m512 (&sums)[keys], float* s,
                                              std::int64_t s_stride) {
  // Vectors of two keys: every 128-bit part p holds rows 2p and 2p + 1 of the first, then of the
  // second.
  __m512 two[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    two[i] = _mm512_add_ps(_mm512_shuffle_ps(sums[2 * i], sums[2 * i + 1], 0x88),
                           _mm512_shuffle_ps(sums[2 * i], sums[2 * i + 1], 0xDD));
  }
  // Parts of four keys of a row; then the parts of sixteen side by side.
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    __m512 four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      four[i] = odd == 0 ? _mm512_shuffle_ps(two[2 * i], two[2 * i + 1], 0x88)
                         : _mm512_shuffle_ps(two[2 * i], two[2 * i + 1], 0xDD);
    }
    const __m512 low_01 = _mm512_shuffle_f32x4(four[0], four[1], 0x44);
    const __m512 high_01 = _mm512_shuffle_f32x4(four[0], four[1], 0xEE);
    const __m512 low_23 = _mm512_shuffle_f32x4(four[2], four[3], 0x44);
    const __m512 high_23 = _mm512_shuffle_f32x4(four[2], four[3], 0xEE);
    const __m512 row[4] = {
        _mm512_shuffle_f32x4(low_01, low_23, 0x88), _mm512_shuffle_f32x4(low_01, low_23, 0xDD),
        _mm512_shuffle_f32x4(high_01, high_23, 0x88), _mm512_shuffle_f32x4(high_01, high_23, 0xDD)};
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      if (2 * p + odd < R) _mm512_storeu_ps(s + (2 * p + odd) * s_stride, row[p]);
    }
  }
}

/// S of R rows, a block as pack_query() leaves it, and all keys; prefetches the next rows by
/// ahead(). Writes up to sixteen scores at once.
template <int R, class T>
void scores(const Rows<T>& all, row_blocks::RowsAhead& ahead, int head_dim, const float* q,
            float* s, std::int64_t s_stride) {
  constexpr bool dots = std::is_same_v<T, bf16>;
  const int bytes = head_dim * static_cast<int>(sizeof(T));
  row_blocks::RowsAhead next = ahead;  // in registers
  for (int first = 0; first < all.count; first += keys) {
    const ByteRows key(all.data + first * all.stride, all.stride);
    const int count = all.count - first;
    __m512 sums[keys];
    if (count >= keys) {
      score_keys<keys, dots>(key, next, bytes, q, sums);
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < keys; ++i) sums[i] = _mm512_setzero_ps();
      for (int i = 0; i < count; ++i) {
        score_keys<1, dots>(key.from(i), next, bytes, q, sums + i);
      }
    }
    store_scores<R>(sums, s + first, s_stride);
  }
  ahead = next;
}

/// f over the lanes of eight vectors: lanes r and 8 + r belong to rows[r].
template <class F>
KOKKOS_FORCEINLINE_FUNCTION __m512 fold(const __m512 (&rows_)[rows], const F& f) {
  __m512 a[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a[i] = f(_mm512_unpacklo_ps(rows_[2 * i], rows_[2 * i + 1]),
             _mm512_unpackhi_ps(rows_[2 * i], rows_[2 * i + 1]));
  }
  __m512 b[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512d low = _mm512_castps_pd(a[2 * i]);
    const __m512d high = _mm512_castps_pd(a[2 * i + 1]);
    b[i] = f(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
             _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  }
  const __m512 c =
      f(_mm512_shuffle_f32x4(b[0], b[1], 0x88), _mm512_shuffle_f32x4(b[0], b[1], 0xDD));
  return f(_mm512_shuffle_f32x4(c, c, 0x88), _mm512_shuffle_f32x4(c, c, 0xDD));
}

/// softmax_of_vectors() of R rows of up to 32 columns, `s_stride` apart, with the statistics one
/// beside the other. Pairs: probabilities become bf16, two to a dword, zeros behind the last.
template <int R, bool Pairs>
void softmax(float* s, std::int64_t s_stride, int columns, float factor, const RunningSoftmax& of) {
  using bf16_panels::first_lanes;
  const __mmask16 low = first_lanes(columns);
  const __mmask16 high = first_lanes(columns - 16);
  const __mmask16 there = first_lanes(R);
  const __m512 hidden = _mm512_set1_ps(-Kokkos::Experimental::infinity_v<float>);
  __m512 folded[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    const float* row = s + Kokkos::min(r, R - 1) * s_stride;
    folded[r] = _mm512_max_ps(_mm512_mask_loadu_ps(hidden, low, row),
                              _mm512_mask_loadu_ps(hidden, high, row + 16));
  }
  const __m512 largest = fold(
      folded,
      [](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_max_ps(a, b); });
  const __m512 old_max = _mm512_maskz_loadu_ps(there, of.max);
  const __m512 new_max = _mm512_max_ps(old_max, largest);
  const auto power_of = [&](__m512 below) __attribute__((always_inline)) {
    return impl::HostVec(_mm512_mul_ps(below, _mm512_set1_ps(factor)));
  };
  const __m512 rescale = static_cast<__m512>(exp2(power_of(_mm512_sub_ps(old_max, new_max))));
  alignas(64) float maxima[16];
  _mm512_store_ps(maxima, new_max);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* row = s + r * s_stride;
    const auto of_vector = [&](__mmask16 mask, const float* from) __attribute__((always_inline)) {
      const impl::HostVec x = power_of(
          _mm512_sub_ps(_mm512_mask_loadu_ps(hidden, mask, from), _mm512_set1_ps(maxima[r])));
      return static_cast<__m512>(Pairs ? exp2_of_16_bits(x) : exp2(x));
    };
    const __m512 first = of_vector(low, row);
    const __m512 second = of_vector(high, row + 16);
    folded[r] = _mm512_add_ps(first, second);
    if constexpr (Pairs) {
      _mm512_storeu_si512(row, round_two(first, second));
    } else {
      _mm512_storeu_ps(row, first);
      _mm512_storeu_ps(row + 16, second);
    }
  }
#pragma GCC unroll 8
  for (int r = R; r < rows; ++r) folded[r] = folded[R - 1];
  const __m512 sum = fold(
      folded,
      [](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_add_ps(a, b); });
  const __m512 old_sum = _mm512_maskz_loadu_ps(there, of.sum);
  _mm512_mask_storeu_ps(of.max, there, new_max);
  _mm512_mask_storeu_ps(of.sum, there, _mm512_fmadd_ps(old_sum, rescale, sum));
  _mm512_mask_storeu_ps(of.rescale, there, rescale);
}

#else

// Declarations for functions that are never called there.
inline constexpr int rows = 0;
template <class T>
inline constexpr bool multiplies = false;
template <class T>
KOKKOS_FORCEINLINE_FUNCTION constexpr bool takes(int /*row_count*/, int /*head_dim*/) {
  return false;
}
template <class... Args>
void pack_query(Args&&...);
template <int R, class... Args>
void scores(Args&&...);
template <int R, bool Pairs, class... Args>
void softmax(Args&&...);

#endif

}  // namespace katt::tile::row_lanes
