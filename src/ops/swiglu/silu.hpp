#pragma once

#include <type_traits>

#include "tile/rows/elementwise.hpp"
#include "tile/vec/vec.hpp"

/// silu(g) = g · σ(g) (Elfwing, Uchibe & Doya 2018, arXiv:1702.03118) in vectors, for results that become an Out.
namespace katt::swiglu::impl {

/// silu(g) · u
template <class Out, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec silu_product(const Vec& g, const Vec& u) {
  return Vec(g * tile::sigmoid<Out>(g) * u);
}

/// silu(g) and its derivative σ(g) · (1 + g · (1 − σ(g))), for results that become a T.
template <class T, class Vec>
struct SiluPair {
  Vec value, slope;
  KOKKOS_FORCEINLINE_FUNCTION explicit SiluPair(const Vec& g) {
    const Vec s = tile::sigmoid<T>(g);
    value = g * s;
    slope = tile::fma(value, Vec(Vec(1.0F) - s), s);
  }
};

}  // namespace katt::swiglu::impl
