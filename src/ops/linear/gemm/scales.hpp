#pragma once

#include <cstdint>

#include "ops/linear/gemm/gemm.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/rows/pairs.hpp"
#include "tile/vec/vec.hpp"

/// The scales of a matrix (ElementScales), where it is read on a host.
namespace katt::linear::impl {

/// The scales of a matrix of T.
template <class T>
struct Scaled {
  const float* rows;
  const T* columns;

  explicit Scaled(const ElementScales& scales)
      : rows(static_cast<const float*>(scales.rows.data)),
        columns(static_cast<const T*>(scales.columns.data)) {}

  /// Factors of the columns from `column` on.
  template <class Vec, class Lanes>
  Vec gain(std::int64_t column, Lanes lanes) const {
    return tile::load<Vec>(columns + column, lanes);
  }
  /// Elements of a row times their scales, not yet rounded.
  template <class Vec>
  Vec product(const Vec& value, std::int64_t row, const Vec& gain) const {
    return Vec(Vec(Vec(value * Vec(rows[2 * row])) * Vec(rows[2 * row + 1])) * gain);
  }
  template <class Vec>
  Vec operator()(const Vec& value, std::int64_t row, const Vec& gain) const {
    return tile::rounded<T>(product(value, row, gain));
  }
};

/// A matrix without scales leaves its elements as they are.
struct Unscaled {
  template <class Vec, class Lanes>
  Vec gain(std::int64_t /*column*/, Lanes /*lanes*/) const {
    return Vec(1.0F);
  }
  template <class Vec>
  Vec operator()(const Vec& value, std::int64_t /*row*/, const Vec& /*gain*/) const {
    return value;
  }
};

/// A block of a matrix.
struct BlockRange {
  std::int64_t row, column, rows, columns;
};

/// to(r, c) = element (row + r, column + c) of a matrix times its scales, rounded; rows of `to` are `to_stride`
/// elements apart.
template <class Vec, class T>
void scale_block(const ConstTensorRef<2>& matrix, const ElementScales& scales,
                 const BlockRange& block, T* to, std::int64_t to_stride) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  const Scaled<T> scaled(scales);
  const std::int64_t stride = matrix.stride[0];
  const T* from = static_cast<const T*>(matrix.data) + block.row * stride + block.column;
  std::int64_t c = 0;
  for (; c + 2 * lanes <= block.columns; c += 2 * lanes) {
    Vec gains[2];
    tile::load_all(scaled.columns + block.column + c, gains);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      Vec values[2];
      tile::load_all(from + r * stride + c, values);
      for (int k = 0; k < 2; ++k) {
        values[k] = scaled.product(values[k], block.row + r, gains[k]);
      }
      tile::store_all<false>(to + r * to_stride + c, values);
    }
  }
  const auto put = [&](auto part) {
    const Vec gain = scaled.template gain<Vec>(block.column + c, part);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      const Vec value = tile::load<Vec>(from + r * stride + c, part);
      tile::store(to + r * to_stride + c, scaled.product(value, block.row + r, gain), part);
    }
  };
  for (; c + lanes <= block.columns; c += lanes) put(tile::WholeVector{});
  if (c < block.columns) put(tile::PartialVector{static_cast<int>(block.columns - c)});
}

}  // namespace katt::linear::impl
