#pragma once

#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/dtype.hpp"
#include "tile/vec/portable.hpp"

namespace katt::tile::impl {

/// Operations of all instruction sets: loads, stores and roundings of 16-bit elements T. Isa has
///
///   Register                 the vector of f32, which Vec converts from and to
///   widen<T>(address)        a Register of elements of T
///   narrow<T>(address, r)    stores a Register as elements of T
///   rounded<T>(r)            a Register rounded to T
template <class Vec, class Isa>
struct NarrowOps : PortableOps<Vec> {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static Vec load(const T* source) {
    if constexpr (std::is_same_v<T, float>) {
      return PortableOps<Vec>::load(source);
    } else {
      return Vec(Isa::template widen<T>(source));
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static void store(T* target, const Vec& value) {
    if constexpr (std::is_same_v<T, float>) {
      PortableOps<Vec>::store(target, value);
    } else {
      Isa::template narrow<T>(target, static_cast<typename Isa::Register>(value));
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static Vec rounded(const Vec& value) {
    return Vec(Isa::template rounded<T>(static_cast<typename Isa::Register>(value)));
  }
};

/// The same, and 2^x by Isa::exponent(r): the lowest bits of each lane moved to its exponent field.
template <class Vec, class Isa>
struct ShiftOps : NarrowOps<Vec, Isa> {
  KOKKOS_FORCEINLINE_FUNCTION static Vec exp2(const Vec& x) {
    return exp2_by_shift(x, to_exponent, [](const Vec& f) { return exp2_of_fraction(f); });
  }
  KOKKOS_FORCEINLINE_FUNCTION static Vec exp2_of_16_bits(const Vec& x) {
    return exp2_by_shift(x, to_exponent,
                         [](const Vec& f) { return exp2_of_fraction_of_16_bits(f); });
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION static Vec to_exponent(const Vec& shifted) {
    return Vec(Isa::exponent(static_cast<typename Isa::Register>(shifted)));
  }
};

}  // namespace katt::tile::impl
