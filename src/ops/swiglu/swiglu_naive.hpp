#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/swiglu/swiglu_kernels.hpp"

/// The passes of the naive variants: each a parallel, vectorised kernel of its own, its result
/// rounded to the dtype where it is stored, as a framework runs a formula operation by operation.
namespace katt::swiglu::impl {

/// out = silu(in)
template <class T>
struct SiluPass {
  static constexpr int chunks = tile::most_chunks;
  Matrix<const T> in;
  Matrix<T> out;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    const SiluPair<T, Vec> silu(tile::load<Vec>(in.at(row, column), lanes));
    tile::store(out.at(row, column), silu.value, lanes);
  }
};

/// out = a · b; out may be a or b.
template <class T>
struct MultiplyPass {
  static constexpr int chunks = tile::most_chunks;
  Matrix<const T> a, b;
  Matrix<T> out;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    const Vec product =
        tile::load<Vec>(a.at(row, column), lanes) * tile::load<Vec>(b.at(row, column), lanes);
    tile::store(out.at(row, column), product, lanes);
  }
};

/// out = d · silu′(gate); out may be d.
template <class T>
struct SiluSlopePass {
  static constexpr int chunks = tile::most_chunks;
  Matrix<const T> gate, d;
  Matrix<T> out;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    const SiluPair<T, Vec> silu(tile::load<Vec>(gate.at(row, column), lanes));
    const Vec product = tile::load<Vec>(d.at(row, column), lanes) * silu.slope;
    tile::store(out.at(row, column), product, lanes);
  }
};

}  // namespace katt::swiglu::impl
