#pragma once

#include <type_traits>

#include "core/dtype.hpp"

/// Vectors of sixteen f32 from and to 16 bits with AVX-512. Only for sources that nvcc does not see.
#if defined(__AVX512F__)
#include <immintrin.h>

namespace katt::avx512 {

/// Sixteen elements of T, f16 or bf16, widened.
template <class T>
[[gnu::always_inline]] inline __m512 widen(__m256i narrow) {
  if constexpr (std::is_same_v<T, f16>) {
    return _mm512_cvtph_ps(narrow);
  } else {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
}

/// To nearest even in the upper half of each lane; a NaN stays one.
[[gnu::always_inline]] inline __m256i bf16_by_integers(__m512 wide) {
  const __m512i bits = _mm512_castps_si512(wide);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(wide, wide, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
}

#if defined(__AVX512BF16__)
/// The lanes that VCVTNEPS2BF16, one instruction instead of nine, would convert to 0.
[[gnu::always_inline]] inline __mmask16 subnormal(__m512 wide) {
  return _mm512_fpclass_ps_mask(wide, 0x20);
}
#endif

/// A vector rounded to nearest even.
template <class T>
[[gnu::always_inline]] inline __m256i narrow(__m512 wide) {
  if constexpr (std::is_same_v<T, f16>) {
    return _mm512_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);
  } else {
#if defined(__AVX512BF16__)
    if (subnormal(wide) == 0) [[likely]] {
      return __m256i(_mm512_cvtneps_pbh(wide));
    }
#endif
    return bf16_by_integers(wide);
  }
}

/// Vectors of even and of odd elements, rounded to nearest even, side by side again.
template <class T>
[[gnu::always_inline]] inline __m512i narrow_pairs(__m512 even, __m512 odd) {
#if defined(__AVX512BF16__)
  if constexpr (std::is_same_v<T, bf16>) {
    if ((subnormal(even) | subnormal(odd)) == 0) [[likely]] {
      const __m512i turns = _mm512_add_epi32(
          _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
          _mm512_slli_epi32(
              _mm512_set_epi32(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16),
              16));
      return _mm512_permutexvar_epi16(turns, __m512i(_mm512_cvtne2ps_pbh(odd, even)));
    }
  }
#endif
  return _mm512_or_si512(_mm512_cvtepu16_epi32(narrow<T>(even)),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow<T>(odd)), 16));
}

#if defined(__AVX512BW__)

/// Each lane with a bf16 in its upper half, rounded to nearest, ties away from zero: one addition,
/// for finite operands.
[[gnu::always_inline]] inline __m512i bf16_in_upper_half(__m512 finite) {
  return _mm512_add_epi32(_mm512_castps_si512(finite), _mm512_set1_epi32(0x8000));
}

/// Finite vectors of even and of odd elements, so rounded, side by side.
[[gnu::always_inline]] inline __m512i bf16_pairs_of_finite(__m512 even, __m512 odd) {
  return _mm512_mask_blend_epi16(0xAAAAAAAAU, _mm512_srli_epi32(bf16_in_upper_half(even), 16),
                                 bf16_in_upper_half(odd));
}

/// Finite vectors, so rounded, one after the other.
[[gnu::always_inline]] inline __m512i bf16_of_finite(__m512 low, __m512 high) {
  const __m512i odd_words =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(bf16_in_upper_half(low), odd_words, bf16_in_upper_half(high));
}

#endif

}  // namespace katt::avx512
#endif
