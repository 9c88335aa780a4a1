#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "tile/elementwise.hpp"

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

/// Sums of a strip of columns over all rows, in the order of the rows.
template <class Exec, class T>
struct ColumnSums {
  /// Vectors of a strip: four independent sums, and whole cache lines of every row.
  static constexpr int vectors = is_host_v<Exec> ? 4 : 1;
  static constexpr std::int64_t strip = vectors * tile::lanes_v<Exec>;

  const T* values;
  std::int64_t rows, columns, stride;
  T* sums;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t column = item * strip;
    if (column + strip <= columns) {
      add<vectors>(column, tile::WholeVector{});
      return;
    }
    for (std::int64_t c = column; c < columns; c += tile::lanes_v<Exec>) {
      const std::int64_t left = columns - c;
      add<1>(c, tile::PartialVector{
                    static_cast<int>(left < tile::lanes_v<Exec> ? left : tile::lanes_v<Exec>)});
    }
  }

  template <int Vectors, class Lanes>
  KOKKOS_INLINE_FUNCTION void add(std::int64_t column, Lanes lanes) const {
    using Vec = tile::VecOf<Exec>;
    Vec sum[Vectors];
    for (int v = 0; v < Vectors; ++v) sum[v] = Vec(0.0F);
    const T* row = values + column;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < Vectors; ++v) {
        sum[v] = sum[v] + tile::load<Vec>(row + v * tile::lanes_v<Exec>, lanes);
      }
      row += stride;
    }
    for (int v = 0; v < Vectors; ++v) {
      tile::store(sums + column + v * tile::lanes_v<Exec>, sum[v], lanes);
    }
  }
};

/// sums(c) = Σ_r values(r, c), added up in f32 in the order of the rows whatever the number of
/// threads.
template <class Exec, class T>
void column_sums(const Exec& exec, const char* label, const T* values, std::int64_t rows,
                 std::int64_t columns, std::int64_t stride, T* sums) {
  using Kernel = ColumnSums<Exec, T>;
  const std::int64_t strips = (columns + Kernel::strip - 1) / Kernel::strip;
  Kokkos::parallel_for(label,
                       Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, strips),
                       Kernel{values, rows, columns, stride, sums});
}

}  // namespace katt::linear::impl
