#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/dtype.hpp"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace katt::tile {

/// Two floats rounded to nearest even to 16-bit elements, the first in the lower half: on a device
/// one instruction (cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32).
template <class T>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t narrow_two(float first, float second) {
  static_assert(sizeof(T) == 2);
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, f16>) {
    const __half2 value = __floats2half2_rn(first, second);
    __builtin_memcpy(&pair, &value, sizeof(pair));
  } else {
    const __nv_bfloat162 value = __floats2bfloat162_rn(first, second);
    __builtin_memcpy(&pair, &value, sizeof(pair));
  }
  return pair;
#else
  return std::bit_cast<std::uint16_t>(T(first)) |
         static_cast<std::uint32_t>(std::bit_cast<std::uint16_t>(T(second))) << 16;
#endif
}

/// The lower and the upper of two 16-bit elements, widened.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION float widen_lower(std::uint32_t pair) {
  T element;
  element.bits = static_cast<std::uint16_t>(pair);
  return static_cast<float>(element);
}
template <class T>
KOKKOS_FORCEINLINE_FUNCTION float widen_upper(std::uint32_t pair) {
  if constexpr (std::is_same_v<T, bf16>) {
    return std::bit_cast<float>(pair & 0xFFFF0000U);
  } else {
    return widen_lower<T>(pair >> 16);
  }
}

}  // namespace katt::tile
