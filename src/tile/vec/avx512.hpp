#pragma once

#include <immintrin.h>

#include "tile/vec/convert_avx512.hpp"
#include "tile/vec/host_ops.hpp"

/// Sixteen lanes: AVX-512 with BW, DQ and VL.
namespace katt::tile {

/// 2^f for f in [0, 1) to a relative error of 2.6e-6 (minimax polynomial of degree 4, by Lawson's
/// iteration).
KOKKOS_FORCEINLINE_FUNCTION __m512 exp2_of_fraction_of_16_bits(__m512 f) {
  __m512 p = _mm512_set1_ps(0x1.bb7cd4p-7F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.aa13fp-5F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee798ap-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d166p-1F));
  return _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.00002cp+0F));
}

/// 2^x to a relative error of 2.6e-6, for code in FlushSubnormals: elsewhere Intel's processors take
/// 60 ns for a vector with x < −126.
KOKKOS_FORCEINLINE_FUNCTION __m512 exp2_of_16_bits(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  return _mm512_scalef_ps(exp2_of_fraction_of_16_bits(f), x);
}

namespace impl {

using HostVec = SimdOf<Kokkos::Experimental::simd_abi::avx512_fixed_size<16>>;
inline constexpr const char* host_name = "avx512";

struct Avx512 {
  using Register = __m512;

  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static __m512 widen(const T* source) {
    return avx512::widen<T>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static void narrow(T* target, __m512 wide) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), avx512::narrow<T>(wide));
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static __m512 rounded(__m512 wide) {
    return avx512::widen<T>(avx512::narrow<T>(wide));
  }
};

struct HostOps : NarrowOps<HostVec, Avx512> {
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_sum(const HostVec& value) {
    return _mm512_reduce_add_ps(static_cast<__m512>(value));
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_max(const HostVec& value) {
    return _mm512_reduce_max_ps(static_cast<__m512>(value));
  }
  KOKKOS_FORCEINLINE_FUNCTION static HostVec exp2(const HostVec& x) {
    const HostVec n = Kokkos::round(x);
    const HostVec scaled = exp2_of_fraction(HostVec(x - n));
    return HostVec(times_power_of_two(static_cast<__m512>(scaled), static_cast<__m512>(n)));
  }
  KOKKOS_FORCEINLINE_FUNCTION static HostVec exp2_of_16_bits(const HostVec& x) {
    const auto wide = static_cast<__m512>(x);
    const __m512 f = _mm512_reduce_ps(wide, _MM_FROUND_TO_NEG_INF);
    return HostVec(times_power_of_two(tile::exp2_of_fraction_of_16_bits(f), wide));
  }
  template <class Out>
  KOKKOS_FORCEINLINE_FUNCTION static HostVec reciprocal(const HostVec& x) {
    // The table's 14 bits and one step of Newton's iteration: a division keeps its unit busy longer.
    const auto value = static_cast<__m512>(x);
    const __m512 y = _mm512_rcp14_ps(value);
    if constexpr (std::is_same_v<Out, bf16>) return HostVec(y);
    const __mmask16 finite = _mm512_cmp_ps_mask(value, _mm512_set1_ps(0x1p126F), _CMP_LT_OQ);
    const __m512 error = _mm512_fnmadd_ps(value, y, _mm512_set1_ps(1.0F));
    return HostVec(_mm512_mask_fmadd_ps(y, finite, error, y));
  }

 private:
  /// p · 2^n with n = x rounded down, or 0 where x < −126: a mask costs less than a subnormal result,
  /// for which Intel's processors take 60 ns a vector. NaN stays NaN.
  KOKKOS_FORCEINLINE_FUNCTION static __m512 times_power_of_two(__m512 p, __m512 x) {
    const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(normal, p, x);
  }
};

}  // namespace impl

}  // namespace katt::tile
