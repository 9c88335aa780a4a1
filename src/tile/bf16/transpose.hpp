#pragma once

#include <Kokkos_Core.hpp>

#include "tile/vec/vec.hpp"

namespace katt::tile {

/// Transposes a square of vectors in place: rows[i][j] ↔ rows[j][i]. For host vectors.
template <class Vec, int Lanes>
KOKKOS_FORCEINLINE_FUNCTION void transpose(Vec (&rows)[Lanes]) {
  static_assert(Lanes == static_cast<int>(sizeof(Vec) / sizeof(float)));
#if defined(KATT_VEC_AVX512)
  // Pairs of f32, then pairs of pairs within each 128-bit part, then the parts themselves.
  __m512 a[16];
  __m512 b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = static_cast<__m512>(rows[i]);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d low = _mm512_castps_pd(b[i + j]);
      const __m512d high = _mm512_castps_pd(b[i + 2 + j]);
      a[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      a[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  // a[4g + c] holds columns c, 4 + c, 8 + c, 12 + c of the rows 4g … 4g + 3, one in each part.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 even_low = _mm512_shuffle_f32x4(a[c], a[4 + c], 0x88);
    const __m512 odd_low = _mm512_shuffle_f32x4(a[c], a[4 + c], 0xDD);
    const __m512 even_high = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0x88);
    const __m512 odd_high = _mm512_shuffle_f32x4(a[8 + c], a[12 + c], 0xDD);
    rows[c] = Vec(_mm512_shuffle_f32x4(even_low, even_high, 0x88));
    rows[8 + c] = Vec(_mm512_shuffle_f32x4(even_low, even_high, 0xDD));
    rows[4 + c] = Vec(_mm512_shuffle_f32x4(odd_low, odd_high, 0x88));
    rows[12 + c] = Vec(_mm512_shuffle_f32x4(odd_low, odd_high, 0xDD));
  }
#elif defined(KATT_VEC_AVX2)
  __m256 a[8];
  __m256 b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = static_cast<__m256>(rows[i]);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + 2 + j], 0x44);
      a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + 2 + j], 0xEE);
    }
  }
  // a[4g + c] holds columns c and 4 + c of the rows 4g … 4g + 3, one in each half.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    rows[c] = Vec(_mm256_permute2f128_ps(a[c], a[4 + c], 0x20));
    rows[4 + c] = Vec(_mm256_permute2f128_ps(a[c], a[4 + c], 0x31));
  }
#elif defined(KATT_VEC_NEON)
  // a[2g] and a[2g + 1] hold the even and the odd columns of the rows 2g and 2g + 1, interleaved.
  float64x2_t a[4];
#pragma GCC unroll 2
  for (int g = 0; g < 4; g += 2) {
    const auto even = static_cast<float32x4_t>(rows[g]);
    const auto odd = static_cast<float32x4_t>(rows[g + 1]);
    a[g] = vreinterpretq_f64_f32(vtrn1q_f32(even, odd));
    a[g + 1] = vreinterpretq_f64_f32(vtrn2q_f32(even, odd));
  }
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    rows[c] = Vec(vreinterpretq_f32_f64(vtrn1q_f64(a[c], a[2 + c])));
    rows[2 + c] = Vec(vreinterpretq_f32_f64(vtrn2q_f64(a[c], a[2 + c])));
  }
#else
  float square[Lanes][Lanes];
  float turned[Lanes][Lanes];
  for (int i = 0; i < Lanes; ++i) store(square[i], rows[i]);
  for (int i = 0; i < Lanes; ++i) {
    for (int j = 0; j < Lanes; ++j) turned[j][i] = square[i][j];
  }
  for (int i = 0; i < Lanes; ++i) rows[i] = load<Vec>(turned[i]);
#endif
}

/// sums[i] = the sum over the lanes of rows[i]; destroys the rows. A whole square of vectors is
/// folded in half at a time, 30 shuffles for 16 vectors of 16, where 16 separate sums take 64; most
/// of a square is filled up to one, with AVX2 and NEON whole squares alone.
template <class Vec, int Count>
KOKKOS_FORCEINLINE_FUNCTION void lane_sums(Vec (&rows)[Count], float (&sums)[Count]) {
#if defined(KATT_VEC_AVX512)
  if constexpr (Count > 8 && Count <= 16 && sizeof(Vec) == 64) {
    __m512 a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = static_cast<__m512>(i < Count ? rows[i] : Vec(0.0F));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      a[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]),
                           _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512d low = _mm512_castps_pd(a[2 * i]);
      const __m512d high = _mm512_castps_pd(a[2 * i + 1]);
      a[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                           _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    }
    // Every 128-bit part of a[i] now holds sums of the rows 4i … 4i + 3; the four parts are left.
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                           _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xDD));
    }
    const __m512 total = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x88),
                                       _mm512_shuffle_f32x4(a[0], a[1], 0xDD));
    if constexpr (Count == 16) {
      store(sums, Vec(total));
    } else {
      alignas(64) float all[16];
      store(all, Vec(total));
      for (int i = 0; i < Count; ++i) sums[i] = all[i];
    }
    return;
  }
#elif defined(KATT_VEC_AVX2)
  if constexpr (Count % 8 == 0 && sizeof(Vec) == 32) {
#pragma GCC unroll 4
    for (int i = 0; i < Count; i += 8) {
      __m256 a[8];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) a[j] = static_cast<__m256>(rows[i + j]);
#pragma GCC unroll 2
      for (int j = 0; j < 8; j += 4) {
        a[j] = _mm256_hadd_ps(_mm256_hadd_ps(a[j], a[j + 1]), _mm256_hadd_ps(a[j + 2], a[j + 3]));
      }
      // Each half of a[0] and a[4] now holds sums of four rows; two halves are left.
      store(sums + i, Vec(_mm256_add_ps(_mm256_permute2f128_ps(a[0], a[4], 0x20),
                                        _mm256_permute2f128_ps(a[0], a[4], 0x31))));
    }
    return;
  }
#elif defined(KATT_VEC_NEON)
  if constexpr (Count % 4 == 0 && sizeof(Vec) == 16) {
#pragma GCC unroll 8
    for (int i = 0; i < Count; i += 4) {
      const auto pair = [&](int row) {
        return vpaddq_f32(static_cast<float32x4_t>(rows[row]),
                          static_cast<float32x4_t>(rows[row + 1]));
      };
      store(sums + i, Vec(vpaddq_f32(pair(i), pair(i + 2))));
    }
    return;
  }
#endif
  for (int i = 0; i < Count; ++i) sums[i] = reduce_sum(rows[i]);
}

}  // namespace katt::tile
