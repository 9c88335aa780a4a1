#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "tile/rows/elementwise.hpp"

/// The passes of linear that are no product.
namespace katt::linear::impl {

/// to = from, in another dtype
template <class From, class To>
struct Convert {
  const From* from;
  std::int64_t from_stride;
  To* to;
  std::int64_t to_stride;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    tile::store(to + row * to_stride + column,
                tile::load<Vec>(from + row * from_stride + column, lanes), lanes);
  }
};

template <class T>
struct AddBias {
  T* out;
  std::int64_t stride;
  const T* bias;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    T* target = out + row * stride + column;
    const Vec sum = tile::load<Vec>(target, lanes) + tile::load<Vec>(bias + column, lanes);
    tile::store(target, sum, lanes);
  }
};

/// out(t, o) += bias(o)
template <class Exec, class T>
void add_bias(const Exec& exec, const char* label, T* out, std::int64_t rows, std::int64_t columns,
              std::int64_t stride, const T* bias) {
  tile::for_each_vector(exec, label, rows, columns, AddBias<T>{out, stride, bias});
}

}  // namespace katt::linear::impl
