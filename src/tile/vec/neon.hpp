#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "tile/vec/convert_neon.hpp"
#include "tile/vec/host_ops.hpp"

/// Four lanes: NEON of 64-bit ARM.
namespace katt::tile::impl {

using HostVec = SimdOf<Kokkos::Experimental::simd_abi::neon_fixed_size<4>>;
inline constexpr const char* host_name = "neon";

struct Neon {
  using Register = float32x4_t;

  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static float32x4_t widen(const T* source) {
    return neon::widen<T>(vld1_u16(reinterpret_cast<const std::uint16_t*>(source)));
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static void narrow(T* target, float32x4_t wide) {
    vst1_u16(reinterpret_cast<std::uint16_t*>(target), neon::narrow<T>(wide));
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static float32x4_t rounded(float32x4_t wide) {
    if constexpr (std::is_same_v<T, f16>) {
      return neon::widen<f16>(neon::narrow<f16>(wide));
    } else {
      return vreinterpretq_f32_u32(
          vandq_u32(neon::bf16_in_upper_half(wide), vdupq_n_u32(0xFFFF0000U)));
    }
  }
  KOKKOS_FORCEINLINE_FUNCTION static float32x4_t exponent(float32x4_t shifted) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23));
  }
};

struct HostOps : ShiftOps<HostVec, Neon> {
  /// NEON's own maximum is NaN when either operand is.
  KOKKOS_FORCEINLINE_FUNCTION static HostVec max(const HostVec& a, const HostVec& b) {
    const auto left = static_cast<float32x4_t>(a);
    const auto right = static_cast<float32x4_t>(b);
    return HostVec(vbslq_f32(vcgtq_f32(left, right), left, right));
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_sum(const HostVec& value) {
    return vaddvq_f32(static_cast<float32x4_t>(value));
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_max(const HostVec& value) {
    return vmaxvq_f32(static_cast<float32x4_t>(value));
  }
};

}  // namespace katt::tile::impl
