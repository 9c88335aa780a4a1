#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"
#include "tile/rows/columns.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/rows/pairs.hpp"
#include "tile/rows/rows.hpp"

/// Sums over the rows of a matrix, one for every column: at once, or first over blocks of rows and
/// then over the blocks, when another kernel reads the rows anyway. The order of the additions
/// depends only on the shape, so the bits do not depend on the number of threads.
namespace katt::tile {

/// The rows of a matrix in blocks, each of which has one partial sum.
struct RowBlocks {
  std::int64_t rows;  ///< per block
  std::int64_t blocks;

  /// On a device four blocks a multiprocessor, with enough threads to hide the latency of a row
  /// from memory; on a host the same number for any number of threads.
  template <class Exec>
  static RowBlocks of(const Exec& exec, std::int64_t tokens) {
#if defined(KATT_HAS_CUDA)
    if constexpr (!is_host_v<Exec>) {
      return of(tokens, 4, 4 * std::int64_t{exec.cuda_device_prop().multiProcessorCount});
    }
#endif
    (void)exec;
    return of(tokens, 16, 256);
  }

 private:
  static RowBlocks of(std::int64_t tokens, std::int64_t least_rows, std::int64_t most_blocks) {
    const auto divided = [](std::int64_t n, std::int64_t d) { return (n + d - 1) / d; };
    const std::int64_t rows = Kokkos::max(least_rows, divided(tokens, most_blocks));
    return {rows, divided(tokens, rows)};
  }
};

/// The place of an element of a row in a partial sum: its own, or the place that load_all() of
/// elements T gives it.
enum class Order : std::uint8_t { natural, loaded };

/// sums = Σ partial, a chunk of columns at a time, blocks in order. A chunk is a whole number of
/// steps of for_column_pairs(), so that elements are loaded as in a row.
template <class Exec, class T, Order order>
struct SumPartials {
  using Vec = VecOf<Exec>;
  static constexpr std::int64_t chunk_columns = is_host_v<Exec> ? 64 : row_team_size;

  const float* partial;  ///< (blocks, columns), rows `stride` elements apart
  std::int64_t blocks, columns, stride;
  T* sums;

  std::int64_t chunks() const { return (columns + chunk_columns - 1) / chunk_columns; }

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t chunk) const {
    const std::int64_t begin = chunk * chunk_columns;
    T* to = sums + begin;
    for_column_pairs<Exec>(
        team, Kokkos::min(std::int64_t{chunk_columns}, columns - begin),
        [&](std::int64_t i, int) {
          const Vec pair[2] = {sum<Vec>(begin + i), sum<Vec>(begin + i + lanes_v<Exec>)};
          if constexpr (order == Order::loaded) {
            store_all<false>(to + i, pair);
          } else {
            for (int k = 0; k < 2; ++k) store(to + i + k * lanes_v<Exec>, pair[k]);
          }
        },
        [&](std::int64_t i, int) { store(to + i, sum<Vec>(begin + i)); },
        [&](std::int64_t i) { store(to + i, sum<float>(begin + i)); });
  }

 private:
  template <class V>
  KOKKOS_FORCEINLINE_FUNCTION V sum(std::int64_t column) const {
    V sum(0.0F);
    for (std::int64_t b = 0; b < blocks; ++b) {
      sum = sum + load<V>(partial + b * stride + column);
    }
    return sum;
  }
};

/// sums(c) = Σ_r values(r, c) on a device: a team has one chunk of columns and its threads share
/// the rows, so that few columns and many rows keep the device busy. The team adds its threads'
/// sums in a fixed order.
template <class From, class To>
struct SumChunks {
  const From* values;
  std::int64_t rows, stride;
  To* sums;

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t chunk) const {
    const std::int64_t column = chunk * chunk_elements;
    Pack<1> sum(0.0F);
    KATT_UNROLL_4
    for (std::int64_t r = team.team_rank(); r < rows; r += team.team_size()) {
      sum = sum + load<Pack<1>>(values + r * stride + column);
    }
    team.team_reduce(Kokkos::Sum<Pack<1>>(sum));
    if (team.team_rank() == 0) store(sums + column, sum);
  }
};

/// Launches SumChunks when the columns are chunks on a device; returns false otherwise.
template <class Exec, class From, class To>
bool sum_chunks(const Exec& exec, const char* label, const From* values, std::int64_t rows,
                std::int64_t columns, std::int64_t stride, To* sums) {
  if constexpr (!is_host_v<Exec>) {
    ConstTensorRef<2> in(values, dtype_of<From>, {rows, columns});
    in.stride[0] = stride;
    if (!are_chunks(in, ConstTensorRef<1>(sums, dtype_of<To>, {columns}))) return false;
    launch_wide_rows(exec, label, columns / chunk_elements,
                     SumChunks<From, To>{values, rows, stride, sums});
    return true;
  }
  return false;
}

/// sums(c) = Σ_b partial(b, c), rows of the partial sums `stride` elements apart.
template <class T, Order order, class Exec>
void sum_partials(const Exec& exec, const char* label, const float* partial, std::int64_t blocks,
                  std::int64_t stride, const TensorRef<1>& sums) {
  const std::int64_t columns = sums.extent[0];
  auto* target = static_cast<T*>(sums.data);
  if (sum_chunks(exec, label, partial, blocks, columns, stride, target)) return;
  const SumPartials<Exec, T, order> kernel{partial, blocks, columns, stride, target};
  for_each_row(exec, label, kernel.chunks(), kernel);
}

/// The partial sum of a block of rows, in f32.
template <class Exec, class T>
struct BlockSums {
  const T* values;
  std::int64_t stride, rows, columns, block_rows;
  float* partial;  ///< (blocks, columns)

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t block) const {
    const std::int64_t begin = block * block_rows;
    const std::int64_t end = Kokkos::min(begin + block_rows, rows);
    float* sum = partial + block * columns;
    for (std::int64_t row = begin; row < end; ++row) {
      const T* from = values + row * stride;
      const bool first = row == begin;
      for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t i, int) {
        const V before = first ? V(0.0F) : load<V>(sum + i);
        store(sum + i, V(before + load<V>(from + i)));
      });
    }
  }
};

/// Sums a strip of columns over all rows, in the order of the rows.
template <class Exec, class T>
struct ColumnSums {
  /// Vectors of a strip: four independent sums, and whole cache lines of every row.
  static constexpr int vectors = is_host_v<Exec> ? 4 : 1;
  static constexpr std::int64_t strip = vectors * lanes_v<Exec>;

  const T* values;
  std::int64_t rows, columns, stride;
  T* sums;

  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t column = item * strip;
    if (column + strip <= columns) {
      add<vectors>(column, WholeVector{});
      return;
    }
    for (std::int64_t c = column; c < columns; c += lanes_v<Exec>) {
      const std::int64_t left = columns - c;
      add<1>(c, PartialVector{static_cast<int>(left < lanes_v<Exec> ? left : lanes_v<Exec>)});
    }
  }

  template <int Vectors, class Lanes>
  KOKKOS_INLINE_FUNCTION void add(std::int64_t column, Lanes lanes) const {
    using Vec = VecOf<Exec>;
    Vec sum[Vectors];
    for (int v = 0; v < Vectors; ++v) sum[v] = Vec(0.0F);
    const T* row = values + column;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int v = 0; v < Vectors; ++v) {
        sum[v] = sum[v] + load<Vec>(row + v * lanes_v<Exec>, lanes);
      }
      row += stride;
    }
    for (int v = 0; v < Vectors; ++v) {
      store(sums + column + v * lanes_v<Exec>, sum[v], lanes);
    }
  }
};

/// sums(c) = Σ_r values(r, c), added in f32 in the order of the rows for every number of threads;
/// on a device in another fixed order (SumChunks).
template <class Exec, class T>
void column_sums(const Exec& exec, const char* label, const T* values, std::int64_t rows,
                 std::int64_t columns, std::int64_t stride, T* sums) {
  if (sum_chunks(exec, label, values, rows, columns, stride, sums)) return;
  using Kernel = ColumnSums<Exec, T>;
  const std::int64_t strips = (columns + Kernel::strip - 1) / Kernel::strip;
  Kokkos::parallel_for(label,
                       Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, strips),
                       Kernel{values, rows, columns, stride, sums});
}

}  // namespace katt::tile
