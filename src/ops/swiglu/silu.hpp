#pragma once

#include <type_traits>

#include "tile/rows/elementwise.hpp"
#include "tile/vec/vec.hpp"

/// silu(g) = g · σ(g) (Elfwing, Uchibe & Doya 2018, arXiv:1702.03118) in vectors, for results that become an Out.
namespace katt::swiglu::impl {

/// 1 / x for x ≥ 1, relative error below 2^-23, or 2^-14 where the result becomes a bf16. With
/// AVX-512 by the table's 14 bits and one step of Newton's iteration, since a division keeps its
/// unit busy for longer than all of the rest.
template <class Out, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec reciprocal(const Vec& x) {
#if defined(KATT_VEC_AVX512)
  if constexpr (!std::is_same_v<Vec, float>) {
    const auto value = static_cast<__m512>(x);
    const __m512 y = _mm512_rcp14_ps(value);
    if constexpr (std::is_same_v<Out, bf16>) {
      return Vec(y);
    } else {
      const __mmask16 finite = _mm512_cmp_ps_mask(value, _mm512_set1_ps(0x1p126F), _CMP_LT_OQ);
      const __m512 error = _mm512_fnmadd_ps(value, y, _mm512_set1_ps(1.0F));
      return Vec(_mm512_mask_fmadd_ps(y, finite, error, y));
    }
  }
#endif
  return Vec(1.0F) / x;
}

/// σ(g) = 1 / (1 + e^−g), for a result that becomes an Out. Below g = −87, where e^−g leaves f32,
/// it is 0.
template <class Out, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec sigmoid(const Vec& g) {
  constexpr float infinite = 128.0F;  // 2^128
  const auto exponential = [&] {
    const Vec exponent = -tile::max(Vec(-infinite), Vec(g * Vec(tile::log2e)));
    if constexpr (std::is_same_v<Out, float>) {
      return tile::exp2(exponent);
    } else {
      return tile::exp2_of_16_bits(exponent);
    }
  };
  return reciprocal<Out>(Vec(Vec(1.0F) + exponential()));
}

/// silu(g) · u
template <class Out, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec silu_product(const Vec& g, const Vec& u) {
  return Vec(g * sigmoid<Out>(g) * u);
}

/// silu(g) and its derivative σ(g) · (1 + g · (1 − σ(g))), for results that become a T.
template <class T, class Vec>
struct SiluPair {
  Vec value, slope;
  KOKKOS_FORCEINLINE_FUNCTION explicit SiluPair(const Vec& g) {
    const Vec s = sigmoid<T>(g);
    value = g * s;
    slope = tile::fma(value, Vec(Vec(1.0F) - s), s);
  }
};

}  // namespace katt::swiglu::impl
