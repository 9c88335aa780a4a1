#pragma once

#include <Kokkos_Core.hpp>

#include "tile/vec.hpp"

namespace katt::tile {

/// Transposes a square of vectors in place: rows[i][j] ↔ rows[j][i]. For host vectors.
template <class Vec, int Lanes>
KOKKOS_FORCEINLINE_FUNCTION void transpose(Vec (&rows)[Lanes]) {
  static_assert(Lanes == static_cast<int>(sizeof(Vec) / sizeof(float)));
#if defined(KOKKOS_ARCH_AVX512XEON)
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

}  // namespace katt::tile
