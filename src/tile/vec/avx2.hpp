#pragma once

#include <immintrin.h>

#include "tile/vec/convert_avx2.hpp"
#include "tile/vec/host_ops.hpp"

/// Eight lanes: AVX2 with FMA and F16C.
namespace katt::tile::impl {

using HostVec = SimdOf<Kokkos::Experimental::simd_abi::avx2_fixed_size<8>>;
inline constexpr const char* host_name = "avx2";

struct Avx2 {
  using Register = __m256;

  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static __m256 widen(const T* source) {
    return avx2::widen<T>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static void narrow(T* target, __m256 wide) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), avx2::narrow<T>(wide));
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static __m256 rounded(__m256 wide) {
    if constexpr (std::is_same_v<T, f16>) {
      return avx2::widen<f16>(avx2::narrow<f16>(wide));
    } else {
      return _mm256_castsi256_ps(_mm256_and_si256(
          avx2::bf16_in_upper_half(wide), _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION static __m256 exponent(__m256 shifted) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
  }
};

struct HostOps : ShiftOps<HostVec, Avx2> {
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_sum(const HostVec& value) {
    return reduce(value, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_max(const HostVec& value) {
    return reduce(value, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
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
};

}  // namespace katt::tile::impl
