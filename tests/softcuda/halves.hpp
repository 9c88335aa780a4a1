#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>

namespace softcuda {

/// The value of the bits of a bf16 or f16.
template <bool bf16>
float widen(std::uint16_t bits) {
  if constexpr (bf16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  else return _cvtsh_ss(bits);
}

/// The bits of the nearest bf16 or f16, to even.
template <bool bf16>
std::uint16_t narrow(float value) {
  if constexpr (bf16) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<std::uint16_t>(value != value ? 0x7FFF
                                                     : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  } else {
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
  }
}

}  // namespace softcuda
