#pragma once

#include <cstdint>

#include "ops/linear/gemm/gemm.hpp"
#include "tile/elementwise.hpp"

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

}  // namespace katt::linear::impl
