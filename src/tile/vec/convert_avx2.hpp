#pragma once

#include <type_traits>

#include "core/dtype.hpp"

/// Vectors of eight f32 from and to 16 bits with AVX2 and F16C, bit for bit as the scalar conversions.
/// Only for sources that nvcc does not see.
#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

namespace katt::avx2 {

/// Eight elements of T, f16 or bf16, widened.
template <class T>
[[gnu::always_inline]] inline __m256 widen(__m128i narrow) {
  if constexpr (std::is_same_v<T, f16>) {
    return _mm256_cvtph_ps(narrow);
  } else {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
}

/// Each lane with a bf16 in its upper half, rounded to nearest even; a NaN becomes a quiet one.
[[gnu::always_inline]] inline __m256i bf16_in_upper_half(__m256 wide) {
  const __m256i bits = _mm256_castps_si256(wide);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256 is_nan = _mm256_cmp_ps(wide, wide, _CMP_UNORD_Q);
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan));
}

/// A vector rounded to nearest even.
template <class T>
[[gnu::always_inline]] inline __m128i narrow(__m256 wide) {
  if constexpr (std::is_same_v<T, f16>) {
    return _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);
  } else {
    const __m256i words = _mm256_srli_epi32(bf16_in_upper_half(wide), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  }
}

/// Vectors of even and of odd elements of bf16, so rounded, side by side again. One comparison asks both for
/// a NaN, and without one 16 bits of all elements are rounded at once.
[[gnu::always_inline]] inline __m256i narrow_pairs(__m256 even, __m256 odd) {
  if (_mm256_movemask_ps(_mm256_cmp_ps(even, odd, _CMP_UNORD_Q)) != 0) [[unlikely]] {
    return _mm256_blend_epi16(_mm256_srli_epi32(bf16_in_upper_half(even), 16),
                              bf16_in_upper_half(odd), 0xAA);
  }
  const __m256i e = _mm256_castps_si256(even);
  const __m256i o = _mm256_castps_si256(odd);
  const __m256i kept = _mm256_blend_epi16(_mm256_srli_epi32(e, 16), o, 0xAA);
  const __m256i cut = _mm256_blend_epi16(e, _mm256_slli_epi32(o, 16), 0xAA);
  // Up from 0x8001, and from 0x8000 where the kept bits are odd.
  const __m256i above = _mm256_adds_epu16(cut, _mm256_and_si256(kept, _mm256_set1_epi16(1)));
  const __m256i up = _mm256_subs_epu16(above, _mm256_set1_epi16(static_cast<short>(0x8000)));
  return _mm256_add_epi16(kept, _mm256_min_epu16(up, _mm256_set1_epi16(1)));
}

}  // namespace katt::avx2
#endif
