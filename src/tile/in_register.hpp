#pragma once

#include "tile/vec.hpp"

namespace katt::tile {

/// The same vector, in a register: as an operand in memory GCC would read it again for each of the
/// products that it takes part in, a load a cycle.
template <class Vec>
Vec in_register(const Vec& value) {
#if defined(KATT_VEC_AVX512)
  if constexpr (sizeof(Vec) == sizeof(__m512)) {
    auto kept = static_cast<__m512>(value);
    asm("" : "+v"(kept));
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
#endif

}  // namespace katt::tile
