#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"

/// Parts that float64 references and their unfused counterparts share.
namespace katt::testing {

/// How a reference computes: in arithmetic type Real, and called with everything that an unfused
/// implementation would store. A template over the two is both.
struct Exactly {
  using Real = double;
  double operator()(double value) const { return value; }
};
/// Arithmetic in f32, rounded to the dtype where something is stored.
struct Unfused {
  using Real = float;
  Dtype dtype;
  float operator()(float value) const { return round_to(dtype, value); }
};

/// Row `row` of a matrix of so many columns.
inline std::span<const float> row_of(std::span<const float> matrix, std::int64_t columns,
                                     std::int64_t row) {
  return matrix.subspan(static_cast<std::size_t>(row * columns), static_cast<std::size_t>(columns));
}

/// Σ_i a(i) · b(i), one product after the other.
template <class Real>
Real dot(std::span<const float> a, std::span<const float> b) {
  Real sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += static_cast<Real>(a[i]) * static_cast<Real>(b[i]);
  }
  return sum;
}

}  // namespace katt::testing
