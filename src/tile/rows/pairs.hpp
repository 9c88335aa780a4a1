#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "tile/rows/pack.hpp"
#include "tile/rows/stream.hpp"
#include "tile/vec/vec.hpp"

/// Vectors of interleaved pairs: (x0, x1, x2, x3, …) in memory, the even and the odd elements in
/// registers.
namespace katt::tile {

/// Number of f32 lanes of a vector, or of an element.
template <class Vec>
inline constexpr int width_v = static_cast<int>(Vec::size());
template <>
inline constexpr int width_v<float> = 1;

/// Elements Odd, Odd + 2, Odd + 4 … of 2 · lanes contiguous ones: of 16 bits, an instruction.
template <class Vec, int Odd>
KOKKOS_FORCEINLINE_FUNCTION Vec load_every_other(const bf16* source) {
#if defined(KATT_VEC_AVX512)
  const __m512i pairs = _mm512_loadu_si512(source);
  return Vec(_mm512_castsi512_ps(
      Odd == 1 ? _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U)))
               : _mm512_slli_epi32(pairs, 16)));
#elif defined(KATT_VEC_AVX2)
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  return Vec(_mm256_castsi256_ps(
      Odd == 1 ? _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U)))
               : _mm256_slli_epi32(pairs, 16)));
#elif defined(KATT_VEC_NEON)
  const uint32x4_t pairs =
      vreinterpretq_u32_u16(vld1q_u16(reinterpret_cast<const std::uint16_t*>(source)));
  return Vec(vreinterpretq_f32_u32(Odd == 1 ? vandq_u32(pairs, vdupq_n_u32(0xFFFF0000U))
                                            : vshlq_n_u32(pairs, 16)));
#else
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  float wide[lanes];
  for (int lane = 0; lane < lanes; ++lane) wide[lane] = static_cast<float>(source[2 * lane + Odd]);
  return load<Vec>(wide);
#endif
}

/// Reads 2 · lanes contiguous elements, widened to f32.
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void load_pairs(const T* source, Vec& even, Vec& odd) {
  if constexpr (std::is_same_v<Vec, float>) {
    even = static_cast<float>(source[0]);
    odd = static_cast<float>(source[1]);
  } else if constexpr (std::is_same_v<T, bf16>) {
    even = load_every_other<Vec, 0>(source);
    odd = load_every_other<Vec, 1>(source);
  } else {
#if defined(KATT_VEC_AVX512)
    if constexpr (std::is_same_v<T, float>) {
      const __m512i evens =
          _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
      const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
      const __m512 low = _mm512_loadu_ps(source);
      const __m512 high = _mm512_loadu_ps(source + 16);
      even = Vec(_mm512_permutex2var_ps(low, evens, high));
      odd = Vec(_mm512_permutex2var_ps(low, odds, high));
    } else {
      const __m512i pairs = _mm512_loadu_si512(source);
      even = Vec(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)));
      odd = Vec(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16))));
    }
#elif defined(KATT_VEC_AVX2)
    const auto low = static_cast<__m256>(load<Vec>(source));
    const auto high = static_cast<__m256>(load<Vec>(source + 8));
    // Shuffles work on halves of the registers.
    const auto ordered = [](__m256 by_halves) {
      return Vec(_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(by_halves), 0xD8)));
    };
    even = ordered(_mm256_shuffle_ps(low, high, 0x88));
    odd = ordered(_mm256_shuffle_ps(low, high, 0xDD));
#elif defined(KATT_VEC_NEON)
    const auto low = static_cast<float32x4_t>(load<Vec>(source));
    const auto high = static_cast<float32x4_t>(load<Vec>(source + 4));
    even = Vec(vuzp1q_f32(low, high));
    odd = Vec(vuzp2q_f32(low, high));
#else
    constexpr int lanes = sizeof(Vec) / sizeof(float);
    float evens[lanes];
    float odds[lanes];
    for (int lane = 0; lane < lanes; ++lane) {
      evens[lane] = static_cast<float>(source[2 * lane]);
      odds[lane] = static_cast<float>(source[2 * lane + 1]);
    }
    even = load<Vec>(evens);
    odd = load<Vec>(odds);
#endif
  }
}

/// Writes 2 · lanes contiguous elements, rounded to nearest even; bypasses the caches with Stream.
template <bool Stream, class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_pairs(T* target, const Vec& even, const Vec& odd) {
  if constexpr (std::is_same_v<Vec, float>) {
    target[0] = static_cast<T>(even);
    target[1] = static_cast<T>(odd);
  } else {
#if defined(KATT_VEC_AVX512)
    if constexpr (std::is_same_v<T, float>) {
      const __m512i first =
          _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
      const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
      const auto e = static_cast<__m512>(even);
      const auto o = static_cast<__m512>(odd);
      store_to<Stream>(target, Vec(_mm512_permutex2var_ps(e, first, o)));
      store_to<Stream>(target + 16, Vec(_mm512_permutex2var_ps(e, second, o)));
    } else {
      impl::store_bits<Stream>(
          target, avx512::narrow_pairs<T>(static_cast<__m512>(even), static_cast<__m512>(odd)));
    }
#elif defined(KATT_VEC_AVX2)
    const auto e = static_cast<__m256>(even);
    const auto o = static_cast<__m256>(odd);
    if constexpr (std::is_same_v<T, bf16>) {
      impl::store_bits<Stream>(target, avx2::narrow_pairs(e, o));
    } else {
      const __m256 low = _mm256_unpacklo_ps(e, o);
      const __m256 high = _mm256_unpackhi_ps(e, o);
      store_to<Stream>(target, Vec(_mm256_permute2f128_ps(low, high, 0x20)));
      store_to<Stream>(target + 8, Vec(_mm256_permute2f128_ps(low, high, 0x31)));
    }
#elif defined(KATT_VEC_NEON)
    const auto e = static_cast<float32x4_t>(even);
    const auto o = static_cast<float32x4_t>(odd);
    if constexpr (std::is_same_v<T, bf16>) {
      vst1q_u16(reinterpret_cast<std::uint16_t*>(target), neon::narrow_pairs(e, o));
    } else {
      store(target, Vec(vzip1q_f32(e, o)));
      store(target + 4, Vec(vzip2q_f32(e, o)));
    }
#else
    constexpr int lanes = sizeof(Vec) / sizeof(float);
    float evens[lanes];
    float odds[lanes];
    store(evens, even);
    store(odds, odd);
    for (int lane = 0; lane < lanes; ++lane) {
      target[2 * lane] = static_cast<T>(evens[lane]);
      target[2 * lane + 1] = static_cast<T>(odds[lane]);
    }
#endif
  }
}

/// Two vectors of contiguous elements, in the cheapest order: the even and the odd ones for bf16,
/// else the first and the last.
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void load_two(const T* source, Vec& a, Vec& b) {
  if constexpr (std::is_same_v<T, bf16>) {
    load_pairs(source, a, b);
  } else {
    a = load<Vec>(source);
    b = load<Vec>(source + sizeof(Vec) / sizeof(float));
  }
}

/// Writes two vectors in the order of load_two(); bypasses the caches with Stream.
template <bool Stream, class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_two(T* target, const Vec& a, const Vec& b) {
  if constexpr (std::is_same_v<T, bf16>) {
    store_pairs<Stream>(target, a, b);
  } else {
    store_two_to<Stream>(target, a, b);
  }
}

/// load_two(), or load() of one vector or element.
template <class Vec, int N, class T>
KOKKOS_FORCEINLINE_FUNCTION void load_all(const T* source, Vec (&values)[N]) {
  static_assert(N == 1 || N == 2);
  if constexpr (N == 2) {
    load_two(source, values[0], values[1]);
  } else {
    values[0] = load<Vec>(source);
  }
}

/// store_two(), or store() of one vector or element, which never bypasses the caches.
template <bool Stream, class Vec, int N, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_all(T* target, const Vec (&values)[N]) {
  static_assert(N == 1 || N == 2);
  if constexpr (N == 2) {
    store_two<Stream>(target, values[0], values[1]);
  } else {
    store(target, values[0]);
  }
}

/// The result of store_all() and load_all() of the same elements, without rounding and widening.
template <bool Stream, class Vec, int N, class T>
KOKKOS_FORCEINLINE_FUNCTION void copy_all(const T* source, T* target) {
  if constexpr (Stream && N == 2) {
    stream_copy_two<Vec>(source, target);
  } else {
    for (int i = 0; i < N * width_v<Vec>; ++i) target[i] = source[i];
  }
}

}  // namespace katt::tile
