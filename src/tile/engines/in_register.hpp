#pragma once

#include "tile/vec/vec.hpp"

namespace katt::tile {

/// The same vector, in a register. As an operand in memory GCC would read it again for each of its
/// products, one load a cycle.
template <class Vec>
Vec in_register(const Vec& value) {
#if defined(KATT_VEC_AVX512)
  if constexpr (sizeof(Vec) == sizeof(__m512)) {
    auto kept = static_cast<__m512>(value);
    asm("" : "+v"(kept));
    return Vec(kept);
  }
#elif defined(KATT_VEC_AVX2)
  if constexpr (sizeof(Vec) == sizeof(__m256)) {
    auto kept = static_cast<__m256>(value);
    asm("" : "+x"(kept));
    return Vec(kept);
  }
#elif defined(KATT_VEC_NEON)
  if constexpr (sizeof(Vec) == sizeof(float32x4_t)) {
    auto kept = static_cast<float32x4_t>(value);
    asm("" : "+w"(kept));
    return Vec(kept);
  }
#endif
  return value;
}

#if defined(KATT_VEC_AVX512)
inline __m512i in_register(__m512i value) {
  asm("" : "+v"(value));
  return value;
}
#elif defined(KATT_VEC_AVX2)
inline __m256i in_register(__m256i value) {
  asm("" : "+x"(value));
  return value;
}
#endif

/// sum + a · b in the register of the sum. With sixteen registers GCC chooses others for sums that fill
/// them, and spills.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec add_in_register(const Vec& sum, const Vec& a, const Vec& b) {
#if defined(KATT_VEC_AVX2)
  if constexpr (sizeof(Vec) == sizeof(__m256)) {
    auto total = static_cast<__m256>(sum);
    asm("vfmadd231ps %2, %1, %0"
        : "+x"(total)
        : "x"(static_cast<__m256>(a)), "x"(static_cast<__m256>(b)));
    return Vec(total);
  }
#endif
  return fma(a, b, sum);
}

}  // namespace katt::tile
