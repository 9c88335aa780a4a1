#pragma once

#include <cstdint>

#include "ops/linear/gemm/gemm.hpp"
#include "ops/swiglu/silu.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::linear::impl {

/// C(row + r, column + ·) = sums(r, ·) + beta · C + bias, rounded, for a block of C; rows of sums are
/// `stride` apart.
template <class Vec>
void finish_block(const GemmArgs& args, const float* sums, std::int64_t stride, std::int64_t row,
                  std::int64_t column, std::int64_t rows, std::int64_t columns, float beta) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  visit_dtype(args.c.dtype, [&]<class T>() {
    visit_dtype(args.bias.dtype, [&]<class B>() {
      const B* bias = args.bias ? static_cast<const B*>(args.bias.data) + column : nullptr;
      for (std::int64_t r = 0; r < rows; ++r) {
        T* c = static_cast<T*>(args.c.data) + (row + r) * args.c.stride[0] + column;
        const auto put = [&](std::int64_t i, auto part) {
          Vec value = tile::load<Vec>(sums + r * stride + i, part);
          if (beta != 0.0F) value = tile::fma(Vec(beta), tile::load<Vec>(c + i, part), value);
          if (bias != nullptr) value = value + tile::load<Vec>(bias + i, part);
          tile::store(c + i, value, part);
        };
        std::int64_t i = 0;
        for (; i + lanes <= columns; i += lanes) put(i, tile::WholeVector{});
        if (i < columns) put(i, tile::PartialVector{static_cast<int>(columns - i)});
      }
    });
  });
}

/// silu(gate) · up as an element of type T, both rounded as they would be stored.
template <class T, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec gated(const Vec& gate, const Vec& up) {
  return swiglu::impl::silu_product<T>(tile::rounded<T>(gate), tile::rounded<T>(up));
}

/// C(row + r, column + ·) of a gated product from the sums of its halves, whose rows are `stride` apart.
template <class Vec>
void finish_gated_block(const GemmArgs& args, const float* gate, const float* up,
                        std::int64_t stride, std::int64_t row, std::int64_t column,
                        std::int64_t rows, std::int64_t columns) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  visit_dtype(args.c.dtype, [&]<class T>() {
    for (std::int64_t r = 0; r < rows; ++r) {
      T* c = static_cast<T*>(args.c.data) + (row + r) * args.c.stride[0] + column;
      const auto put = [&](std::int64_t i, auto part) {
        const Vec value = gated<T>(tile::load<Vec>(gate + r * stride + i, part),
                                   tile::load<Vec>(up + r * stride + i, part));
        tile::store(c + i, value, part);
      };
      std::int64_t i = 0;
      for (; i + lanes <= columns; i += lanes) put(i, tile::WholeVector{});
      if (i < columns) put(i, tile::PartialVector{static_cast<int>(columns - i)});
    }
  });
}

}  // namespace katt::linear::impl
