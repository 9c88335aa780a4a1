#pragma once

#include <immintrin.h>

#include "core/dtype.hpp"
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
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
      if constexpr (std::is_same_v<T, f16>) {
        return HostVec(_mm256_cvtph_ps(half));
      } else {
        return HostVec(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
      }
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static HostVec rounded(const HostVec& value) {
    T narrow[lanes];
    store(narrow, value);
    return load(narrow);
  }
  KOKKOS_FORCEINLINE_FUNCTION static HostVec exp2(const HostVec& x) {
    return exp2_by_exponents(x, [](const HostVec& scaled, const HostVec& n) {
      const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(static_cast<__m256>(n)), 23);
      return HostVec(_mm256_castsi256_ps(
          _mm256_add_epi32(_mm256_castps_si256(static_cast<__m256>(scaled)), exponent)));
    });
  }
  KOKKOS_FORCEINLINE_FUNCTION static HostVec exp2_of_16_bits(const HostVec& x) { return exp2(x); }
};

}  // namespace katt::tile::impl
