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

/// 1 / x for 1 ≤ x ≤ 2, relative error below 2^-23. With AVX-512 by the table's 14 bits and one
/// step of Newton's iteration: a division keeps its unit busy for longer than all of the rest.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec reciprocal(const Vec& x) {
#if defined(KATT_VEC_AVX512)
  if constexpr (!std::is_same_v<Vec, float>) {
    const Vec y(_mm512_rcp14_ps(static_cast<__m512>(x)));
    return tile::fma(y, tile::fma(Vec(-x), y, Vec(1.0F)), y);
  }
#endif
  return Vec(1.0F) / x;
}

/// σ(g) = 1 / (1 + e^−|g|) for g ≥ 0 and e^−|g| / (1 + e^−|g|) for g < 0: the exponential never
/// overflows, and small results keep their relative precision.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec sigmoid(const Vec& g) {
  constexpr float log2e = 1.4426950408889634F;
  const Vec e = tile::exp2(Vec(Kokkos::abs(g) * Vec(-log2e)));
  return where_not_negative(g, Vec(1.0F), e) * reciprocal(Vec(Vec(1.0F) + e));
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

/// Reads a vector and asks for what comes a thousand elements later: the arithmetic between two
/// loads fills the window in which a core would find the next misses by itself.
template <class Vec, class T, class Lanes>
KOKKOS_FORCEINLINE_FUNCTION Vec load_ahead(const T* source, Lanes lanes) {
  tile::prefetch(source + 1024);
  return tile::load<Vec>(source, lanes);
}

/// out = silu(gate) · up. T and Out may differ: f32 blocks give a product operand in the dtype.
template <class T, class Out>
struct Activate {
  Matrix<const T> gate, up;
  Matrix<Out> out;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    tile::store(out.at(row, column), value<Vec>(row, column, lanes), lanes);
  }
  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void pair(std::int64_t row, std::int64_t column, Lanes lanes) const {
    constexpr int width = sizeof(Vec) / sizeof(float);
    const Vec first = value<Vec>(row, column, lanes);
    const Vec second = value<Vec>(row, column + width, lanes);
    tile::store(out.at(row, column), first, lanes);
    tile::store(out.at(row, column + width), second, lanes);
  }

 private:
  template <class Vec, class Lanes>
  KOKKOS_FORCEINLINE_FUNCTION Vec value(std::int64_t row, std::int64_t column, Lanes lanes) const {
    const Vec g = load_ahead<Vec>(gate.at(row, column), lanes);
    const Vec u = load_ahead<Vec>(up.at(row, column), lanes);
    return Vec(g * sigmoid(g) * u);
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
    const SiluPair<Vec> silu(load_ahead<Vec>(gate.at(row, column), lanes));
    const Vec u = load_ahead<Vec>(up.at(row, column), lanes);
    const Vec d = load_ahead<Vec>(dout.at(row, column), lanes);
    tile::store(dgate.at(row, column), Vec(d * u * silu.slope), lanes);
    tile::store(dup.at(row, column), Vec(d * silu.value), lanes);
    if (out.data != nullptr) tile::store(out.at(row, column), Vec(silu.value * u), lanes);
  }
};

}  // namespace katt::swiglu::impl
