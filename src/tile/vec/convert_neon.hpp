#pragma once

#include <type_traits>

#include "core/dtype.hpp"

/// Vectors of four f32 from and to 16 bits with NEON of 64-bit ARM, bit for bit as the scalar
/// conversions. Only for sources that nvcc does not see.
#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>

namespace katt::neon {

/// Four elements of T, f16 or bf16, widened.
template <class T>
[[gnu::always_inline]] inline float32x4_t widen(uint16x4_t narrow) {
  if constexpr (std::is_same_v<T, f16>) {
    return vcvt_f32_f16(vreinterpret_f16_u16(narrow));
  } else {
    return vreinterpretq_f32_u32(vshll_n_u16(narrow, 16));
  }
}

/// Each lane with a bf16 in its upper half, rounded to nearest even; a NaN becomes a quiet one.
[[gnu::always_inline]] inline uint32x4_t bf16_in_upper_half(float32x4_t wide) {
  const uint32x4_t bits = vreinterpretq_u32_f32(wide);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
  const uint32x4_t is_number = vceqq_f32(wide, wide);
  return vbslq_u32(is_number, rounded, quiet);
}

/// A vector rounded to nearest even.
template <class T>
[[gnu::always_inline]] inline uint16x4_t narrow(float32x4_t wide) {
  if constexpr (std::is_same_v<T, f16>) {
    return vreinterpret_u16_f16(vcvt_f16_f32(wide));
  } else {
    return vshrn_n_u32(bf16_in_upper_half(wide), 16);
  }
}

/// Vectors of even and of odd elements of bf16, so rounded, side by side again.
[[gnu::always_inline]] inline uint16x8_t narrow_pairs(float32x4_t even, float32x4_t odd) {
  return vtrn2q_u16(vreinterpretq_u16_u32(bf16_in_upper_half(even)),
                    vreinterpretq_u16_u32(bf16_in_upper_half(odd)));
}

}  // namespace katt::neon
#endif
