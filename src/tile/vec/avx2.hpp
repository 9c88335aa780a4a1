#pragma once

#include <immintrin.h>

#include "tile/vec/convert_avx2.hpp"
#include "tile/vec/portable.hpp"

/// Eight lanes: AVX2 with FMA and F16C.
namespace katt::tile::impl {

using HostVec = SimdOf<Kokkos::Experimental::simd_abi::avx2_fixed_size<8>>;
inline constexpr const char* host_name = "avx2";

struct HostOps : PortableOps<HostVec> {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static HostVec load(const T* source) {
    if constexpr (std::is_same_v<T, float>) {
      return PortableOps::load(source);
    } else {
      return HostVec(avx2::widen<T>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))));
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static void store(T* target, const HostVec& value) {
    if constexpr (std::is_same_v<T, float>) {
      PortableOps::store(target, value);
    } else {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                       avx2::narrow<T>(static_cast<__m256>(value)));
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static HostVec rounded(const HostVec& value) {
    const auto wide = static_cast<__m256>(value);
    if constexpr (std::is_same_v<T, f16>) {
      return HostVec(avx2::widen<f16>(avx2::narrow<f16>(wide)));
    } else {
      return HostVec(_mm256_castsi256_ps(_mm256_and_si256(
          avx2::bf16_in_upper_half(wide), _mm256_set1_epi32(static_cast<int>(0xFFFF0000U)))));
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_sum(const HostVec& value) {
    return reduce(value, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_max(const HostVec& value) {
    return reduce(value, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
  }
  KOKKOS_FORCEINLINE_FUNCTION static HostVec exp2(const HostVec& x) {
    return exp2_by_shift(x, to_exponent, [](const HostVec& f) { return exp2_of_fraction(f); });
  }
  KOKKOS_FORCEINLINE_FUNCTION static HostVec exp2_of_16_bits(const HostVec& x) {
    return exp2_by_shift(x, to_exponent,
                         [](const HostVec& f) { return exp2_of_fraction_of_16_bits(f); });
  }

 private:
  /// All lanes combined by f.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION static float reduce(const HostVec& value, const F& f) {
    const auto all = static_cast<__m256>(value);
    const __m128 four = f(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    const __m128 two = f(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(f(two, _mm_movehdup_ps(two)));
  }

  KOKKOS_FORCEINLINE_FUNCTION static HostVec to_exponent(const HostVec& shifted) {
    return HostVec(_mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_castps_si256(static_cast<__m256>(shifted)), 23)));
  }
};

}  // namespace katt::tile::impl
