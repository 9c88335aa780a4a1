#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "tile/bf16/amx.hpp"
#include "tile/vec/vec.hpp"

/// Dot products of pairs of bf16 on vectors of AVX-512 (VDPBF16PS of AVX512-BF16): a pair of either
/// operand adds two products to each f32 sum.
namespace katt::tile {

/// True when this code is compiled for cores with as many VDPBF16PS a cycle as FMAs of f32, and so
/// twice the products (CpuFeatures::fast_avx512_bf16 is the same check at run time).
#if defined(KATT_BF16_PANELS) && defined(__AVX512BF16__)
inline constexpr bool has_fast_dots = is_zen;
#else
inline constexpr bool has_fast_dots = false;
#endif

#if defined(KATT_BF16_PANELS)

/// sum + a · b by pairs, in the register of the sum: with the intrinsic, GCC 12 copies it.
KOKKOS_FORCEINLINE_FUNCTION __m512 add_dots(__m512 sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
  return sum;
}

/// The lanes of two vectors, rounded to nearest even, one vector after the other.
KOKKOS_FORCEINLINE_FUNCTION __m512i round_two(__m512 low, __m512 high) {
  __m512i narrow;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(narrow) : "v"(low), "v"(high));
  return narrow;
}

/// Columns 0 … 15 of two rows as pairs.
KOKKOS_FORCEINLINE_FUNCTION __m512i first_pairs(__m512i first, __m512i second) {
  alignas(64) static constexpr std::uint16_t places[32] = {
      0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return _mm512_permutex2var_epi16(first, _mm512_load_si512(places), second);
}

/// Columns 16 … 31 of them.
KOKKOS_FORCEINLINE_FUNCTION __m512i last_pairs(__m512i first, __m512i second) {
  alignas(64) static constexpr std::uint16_t places[32] = {
      16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
      24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  return _mm512_permutex2var_epi16(first, _mm512_load_si512(places), second);
}

#endif

}  // namespace katt::tile
