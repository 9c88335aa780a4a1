#pragma once

#include <cstddef>

#include <Kokkos_Core.hpp>

#include "tile/vec/vec.hpp"

namespace katt::tile {

/// A matrix in fast memory, read element by element: element (m, k) is data[m · row + k · column].
struct Broadcasts {
  const float* data = nullptr;
  std::ptrdiff_t row = 0;
  std::ptrdiff_t column = 0;
};

/// Rows of whole vectors in fast memory.
template <class T>
struct VectorRows {
  T* data = nullptr;
  std::ptrdiff_t stride = 0;
};

namespace impl {

/// Register block of a product: rows × vectors accumulators.
template <class Exec>
struct ProductBlock {
  static constexpr int lanes = lanes_v<Exec>;
  static constexpr int rows = lanes == 1 ? 4 : 6;
  static constexpr int vectors = lanes == 8 ? 2 : 4;
};

template <class Vec, int Rows, int Vectors, bool Accumulate>
KOKKOS_FORCEINLINE_FUNCTION void product_block(int depth, const Broadcasts& a,
                                               const VectorRows<const float>& b,
                                               const VectorRows<float>& c) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  Vec acc[Rows][Vectors];
  for (int m = 0; m < Rows; ++m) {
    for (int v = 0; v < Vectors; ++v) {
      acc[m][v] = Accumulate ? load<Vec>(c.data + m * c.stride + v * lanes) : Vec(0.0F);
    }
  }
  const float* left = a.data;
  const float* right = b.data;
  for (int k = 0; k < depth; ++k) {
    Vec row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = load<Vec>(right + v * lanes);
#pragma GCC unroll 8
    for (int m = 0; m < Rows; ++m) {
      const Vec broadcast(left[m * a.row]);
      for (int v = 0; v < Vectors; ++v) acc[m][v] = fma(broadcast, row[v], acc[m][v]);
    }
    left += a.column;
    right += b.stride;
  }
  for (int m = 0; m < Rows; ++m) {
    for (int v = 0; v < Vectors; ++v) store(c.data + m * c.stride + v * lanes, acc[m][v]);
  }
}

/// Computes a block of `rows` rows, up to Rows.
template <class Vec, int Vectors, bool Accumulate, int Rows>
KOKKOS_FORCEINLINE_FUNCTION void product_rows(int rows, int depth, const Broadcasts& a,
                                              const VectorRows<const float>& b,
                                              const VectorRows<float>& c) {
  if constexpr (Rows > 0) {
    if (rows == Rows) {
      product_block<Vec, Rows, Vectors, Accumulate>(depth, a, b, c);
    } else {
      product_rows<Vec, Vectors, Accumulate, Rows - 1>(rows, depth, a, b, c);
    }
  }
}

/// Rows form blocks of nearly equal size: a block of few rows has too few sums to hide the latency
/// of an FMA.
template <class Exec, class Team, int Vectors, bool Accumulate>
KOKKOS_INLINE_FUNCTION void product_columns(const Team& team, int rows, int groups, int depth,
                                            const Broadcasts& a, const VectorRows<const float>& b,
                                            const VectorRows<float>& c) {
  using Vec = VecOf<Exec>;
  constexpr int block = ProductBlock<Exec>::rows;
  const int blocks = (rows + block - 1) / block;
  const int each = blocks == 0 ? 0 : rows / blocks;
  const int larger = rows - blocks * each;
  for (int item = team.team_rank(); item < blocks * groups; item += team.team_size()) {
    const int index = item % blocks;
    const int first = index * each + Kokkos::min(index, larger);
    const std::ptrdiff_t column =
        static_cast<std::ptrdiff_t>(item / blocks) * Vectors * lanes_v<Exec>;
    const Broadcasts left{a.data + first * a.row, a.row, a.column};
    const VectorRows<const float> right{b.data + column, b.stride};
    const VectorRows<float> target{c.data + first * c.stride + column, c.stride};
    product_rows<Vec, Vectors, Accumulate, block>(each + (index < larger ? 1 : 0), depth, left,
                                                  right, target);
  }
}

}  // namespace impl

/// C = A·B, or C += A·B, on f32 tiles in fast memory: rows × depth by depth × (vectors · lanes). A
/// is read by broadcasts and may be transposed; B and C have contiguous rows of whole vectors. All
/// threads of a team call it; the caller puts barriers around it.
template <class Exec, bool Accumulate, class Team>
KOKKOS_INLINE_FUNCTION void product(const Team& team, int rows, int vectors, int depth,
                                    const Broadcasts& a, const VectorRows<const float>& b,
                                    const VectorRows<float>& c) {
  constexpr int wide = impl::ProductBlock<Exec>::vectors;
  const int groups = vectors / wide;
  impl::product_columns<Exec, Team, wide, Accumulate>(team, rows, groups, depth, a, b, c);
  const std::ptrdiff_t done = static_cast<std::ptrdiff_t>(groups) * wide * lanes_v<Exec>;
  const VectorRows<const float> b_rest{b.data + done, b.stride};
  const VectorRows<float> c_rest{c.data + done, c.stride};
  const int rest = vectors - groups * wide;
  if (rest == 1) {
    impl::product_columns<Exec, Team, 1, Accumulate>(team, rows, 1, depth, a, b_rest, c_rest);
  } else if (rest == 2) {
    impl::product_columns<Exec, Team, 2, Accumulate>(team, rows, 1, depth, a, b_rest, c_rest);
  } else if (rest == 3) {
    impl::product_columns<Exec, Team, 3, Accumulate>(team, rows, 1, depth, a, b_rest, c_rest);
  }
}

}  // namespace katt::tile
