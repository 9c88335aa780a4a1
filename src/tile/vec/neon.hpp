#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "tile/vec/convert_neon.hpp"
#include "tile/vec/portable.hpp"

/// Four lanes: NEON of 64-bit ARM.
namespace katt::tile::impl {

using HostVec = SimdOf<Kokkos::Experimental::simd_abi::neon_fixed_size<4>>;
inline constexpr const char* host_name = "neon";

struct HostOps : PortableOps<HostVec> {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static HostVec load(const T* source) {
    if constexpr (std::is_same_v<T, float>) {
      return PortableOps::load(source);
    } else {
      return HostVec(neon::widen<T>(vld1_u16(reinterpret_cast<const std::uint16_t*>(source))));
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static void store(T* target, const HostVec& value) {
    if constexpr (std::is_same_v<T, float>) {
      PortableOps::store(target, value);
    } else {
      vst1_u16(reinterpret_cast<std::uint16_t*>(target),
               neon::narrow<T>(static_cast<float32x4_t>(value)));
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static HostVec rounded(const HostVec& value) {
    const auto wide = static_cast<float32x4_t>(value);
    if constexpr (std::is_same_v<T, f16>) {
      return HostVec(neon::widen<f16>(neon::narrow<f16>(wide)));
    } else {
      return HostVec(vreinterpretq_f32_u32(
          vandq_u32(neon::bf16_in_upper_half(wide), vdupq_n_u32(0xFFFF0000U))));
    }
  }
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
  KOKKOS_FORCEINLINE_FUNCTION static HostVec exp2(const HostVec& x) {
    return exp2_by_shift(x, to_exponent, [](const HostVec& f) { return exp2_of_fraction(f); });
  }
  KOKKOS_FORCEINLINE_FUNCTION static HostVec exp2_of_16_bits(const HostVec& x) {
    return exp2_by_shift(x, to_exponent,
                         [](const HostVec& f) { return exp2_of_fraction_of_16_bits(f); });
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION static HostVec to_exponent(const HostVec& shifted) {
    return HostVec(vreinterpretq_f32_u32(
        vshlq_n_u32(vreinterpretq_u32_f32(static_cast<float32x4_t>(shifted)), 23)));
  }
};

}  // namespace katt::tile::impl
