#pragma once

#include <Kokkos_Core.hpp>

/// Single floats: the vectors of a device, where the lanes are threads, and of a host without
/// vectors, and the remainder of whole vectors. max, exp2, fma and tanh also take double, for
/// references.
namespace katt::tile::impl {

struct ScalarOps {
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static float load(const T* source) {
    return static_cast<float>(*source);
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static void store(T* target, float value) {
    *target = static_cast<T>(value);
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static float rounded(float value) {
    return static_cast<float>(static_cast<T>(value));
  }
  template <class Real>
  KOKKOS_FORCEINLINE_FUNCTION static Real max(Real a, Real b) {
    return a > b ? a : b;
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_sum(float value) { return value; }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_max(float value) { return value; }
  template <class Real>
  KOKKOS_FORCEINLINE_FUNCTION static Real exp2(Real x) {
    return Kokkos::exp2(x);
  }
  KOKKOS_FORCEINLINE_FUNCTION static float exp2_of_16_bits(float x) { return Kokkos::exp2(x); }
  template <class Out, class V>
  KOKKOS_FORCEINLINE_FUNCTION static V reciprocal(const V& x) {
    return V(1.0F) / x;
  }
};

}  // namespace katt::tile::impl
