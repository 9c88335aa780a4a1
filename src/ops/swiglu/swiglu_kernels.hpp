#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "tile/elementwise.hpp"

/// The fused kernels of SwiGLU: one pass over memory. Also used by swiglu_mlp, on blocks in f32.
namespace katt::swiglu::impl {

/// `chosen` where g ≥ 0, else `other`.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec where_not_negative(const Vec& g, const Vec& chosen,
                                                   const Vec& other) {
  if constexpr (std::is_same_v<Vec, float>) {
    return g >= 0.0F ? chosen : other;
  } else {
    return Kokkos::Experimental::condition(g >= Vec(0.0F), chosen, other);
  }
}

/// σ(g) = 1 / (1 + e^−|g|) for g ≥ 0 and e^−|g| / (1 + e^−|g|) for g < 0: the exponential never
/// overflows, and small results keep their relative precision.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec sigmoid(const Vec& g) {
  constexpr float log2e = 1.4426950408889634F;
  const Vec e = tile::exp2(Vec(Kokkos::abs(g) * Vec(-log2e)));
  return where_not_negative(g, Vec(1.0F), e) / (Vec(1.0F) + e);
}

/// A row-major matrix: its first element and the distance of its rows.
template <class T>
struct Matrix {
  T* data;
  std::int64_t stride;
  KOKKOS_FORCEINLINE_FUNCTION T* at(std::int64_t row, std::int64_t column) const {
    return data + row * stride + column;
  }
};

/// out = silu(gate) · up. T and Out may differ: f32 blocks give a product operand in the dtype.
template <class T, class Out>
struct Activate {
  Matrix<const T> gate, up;
  Matrix<Out> out;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    const Vec g = tile::load<Vec>(gate.at(row, column), lanes);
    const Vec u = tile::load<Vec>(up.at(row, column), lanes);
    tile::store(out.at(row, column), Vec(g * sigmoid(g) * u), lanes);
  }
};

/// silu(g) and its derivative σ(g) · (1 + g · (1 − σ(g))).
template <class Vec>
struct SiluPair {
  Vec value, slope;
  KOKKOS_FORCEINLINE_FUNCTION explicit SiluPair(const Vec& g) {
    const Vec s = sigmoid(g);
    value = g * s;
    slope = tile::fma(value, Vec(Vec(1.0F) - s), s);
  }
};

/// dgate = dout · up · silu′(gate), dup = dout · silu(gate); and out = silu(gate) · up where asked
/// for.
template <class T, class Out>
struct ActivateBackward {
  Matrix<const T> gate, up, dout;
  Matrix<Out> dgate, dup;
  Matrix<Out> out;  ///< null: not wanted

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    const SiluPair<Vec> silu(tile::load<Vec>(gate.at(row, column), lanes));
    const Vec u = tile::load<Vec>(up.at(row, column), lanes);
    const Vec d = tile::load<Vec>(dout.at(row, column), lanes);
    tile::store(dgate.at(row, column), Vec(d * u * silu.slope), lanes);
    tile::store(dup.at(row, column), Vec(d * silu.value), lanes);
    if (out.data != nullptr) tile::store(out.at(row, column), Vec(silu.value * u), lanes);
  }
};

}  // namespace katt::swiglu::impl
