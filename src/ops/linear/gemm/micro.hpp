#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/tensor.hpp"
#include "ops/linear/gemm/scales.hpp"
#include "tile/bf16/transpose.hpp"
#include "tile/extents.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/vec/vec.hpp"

/// The innermost parts of a product on a host (Goto & van de Geijn 2008, "Anatomy of
/// High-Performance Matrix Multiplication"): packing, which also widens, and the kernel on packed
/// panels.
///
///   panel of A: a few rows of op(A) over `depth` steps of k, packed (depth, rows)
///   panel of B: a few vectors of columns of op(B) over the same steps, packed (depth, columns)
///   kernel:     acc(r, ·) += a(k, r) · b(k, ·) for k = 0, 1, …, all of acc in registers
///
/// Every element of C is a chain of fused multiply-adds over k that starts again every
/// `depth_of(k)` steps, in an order that does not depend on how rows and columns are cut into
/// blocks.
namespace katt::linear::impl {

template <class Vec>
struct Micro {
  static constexpr int lanes = sizeof(Vec) / sizeof(float);
  /// Rows and vectors of the accumulators. They, a row of B and a broadcast fill the registers.
  static constexpr int rows = lanes == 16 ? 14 : lanes == 8 ? 6 : 4;
  static constexpr int vectors = lanes >= 8 ? 2 : 4;
  static constexpr int columns = vectors * lanes;
  /// Most steps of k in a panel: one of A and a part of one of B stay in the first-level cache.
  static constexpr std::int64_t largest_depth = 352;
  /// Steps in a panel: those of a sum in equal parts, of whole vectors.
  static constexpr std::int64_t depth_of(std::int64_t k) {
    const std::int64_t parts = (k + largest_depth - 1) / largest_depth;
    if (parts < 2) return k;
    return ((k + parts - 1) / parts + lanes - 1) / lanes * lanes;
  }
  /// Elements that the packing of a panel of A may write beyond its end.
  static constexpr int slack = lanes;
};

/// Rows and steps of a panel within op(A), or columns and steps within op(B).
struct PanelRange {
  std::int64_t first, count;  ///< rows of op(A) or columns of op(B)
  std::int64_t k, depth;
};

/// Asks the second-level cache for a line of the panel behind the one that is packed. Rows of a panel are too short
/// and too many for a processor to see what comes next. (Into the first level there is less room: no gain.)
inline void ask_for_next(const void* line) { __builtin_prefetch(line, 0, 2); }

/// out(i, j) = source(first + j, k + i) for a matrix whose rows run along k: a transposition. Rows
/// of `out` are `stride` apart; up to a vector beyond `count` is overwritten, with zeros.
template <class Vec, class T, class Scaling>
void pack_across(const T* source, std::int64_t source_stride, const PanelRange& range, float* out,
                 std::int64_t stride, const Scaling& scaled) {
  constexpr int lanes = Micro<Vec>::lanes;
  for (std::int64_t step = 0; step < range.depth; step += lanes) {
    const auto steps = static_cast<int>(std::min<std::int64_t>(lanes, range.depth - step));
    const std::int64_t column = range.k + step;
    const Vec gain = steps == lanes ? scaled.template gain<Vec>(column, tile::WholeVector{})
                                    : scaled.template gain<Vec>(column, tile::PartialVector{steps});
    for (std::int64_t first = 0; first < range.count; first += lanes) {
      const auto used = static_cast<int>(std::min<std::int64_t>(lanes, range.count - first));
      const std::int64_t row = range.first + first;
      const T* corner = source + row * source_stride + column;
      Vec square[lanes];
      for (int i = 0; i < lanes; ++i) {
        if (i >= used) {
          square[i] = Vec(0.0F);
        } else if (steps == lanes) {
          square[i] = scaled(tile::load<Vec>(corner + i * source_stride), row + i, gain);
          ask_for_next(corner + (i + range.count) * source_stride);
        } else {
          square[i] =
              scaled(tile::load<Vec>(corner + i * source_stride, tile::PartialVector{steps}),
                     row + i, gain);
        }
      }
      tile::transpose(square);
      for (int i = 0; i < steps; ++i) tile::store(out + (step + i) * stride + first, square[i]);
    }
  }
}

/// out(i, j) = source(k + i, first + j) for a matrix whose rows run across k; `columns` is its
/// width, beyond which nothing is read. Writes as pack_across() does.
template <class Vec, class T, class Scaling>
void pack_along(const T* source, std::int64_t source_stride, std::int64_t columns,
                const PanelRange& range, float* out, std::int64_t stride, const Scaling& scaled) {
  constexpr int lanes = Micro<Vec>::lanes;
  for (std::int64_t first = 0; first < range.count; first += lanes) {
    const std::int64_t column = range.first + first;
    const T* row = source + range.k * source_stride + column;
    float* target = out + first;
    if (column + lanes <= columns) {
      const Vec gain = scaled.template gain<Vec>(column, tile::WholeVector{});
      for (std::int64_t step = 0; step < range.depth; ++step) {
        tile::store(target + step * stride,
                    scaled(tile::load<Vec>(row + step * source_stride), range.k + step, gain));
        ask_for_next(row + step * source_stride + range.count);
      }
    } else {
      const tile::PartialVector part{static_cast<int>(columns - column)};
      const Vec gain = scaled.template gain<Vec>(column, part);
      for (std::int64_t step = 0; step < range.depth; ++step) {
        tile::store(
            target + step * stride,
            scaled(tile::load<Vec>(row + step * source_stride, part), range.k + step, gain));
      }
    }
  }
}

/// Packs a panel of op(A) or op(B)ᵀ; `across` tells whether the rows of the matrix run along k.
template <class Vec>
void pack(const ConstTensorRef<2>& matrix, const ElementScales& scales, bool across,
          const PanelRange& range, float* out, std::int64_t stride) {
  if (range.depth == 0) return;  // an empty matrix has no address
  visit_dtype(matrix.dtype, [&]<class T>() {
    const auto with = [&](const auto& scaled) {
      const T* source = static_cast<const T*>(matrix.data);
      if (across) {
        pack_across<Vec>(source, matrix.stride[0], range, out, stride, scaled);
      } else {
        pack_along<Vec>(source, matrix.stride[0], matrix.extent[1], range, out, stride, scaled);
      }
    };
    scales.are_there() ? with(Scaled<T>(scales)) : with(Unscaled{});
  });
}

/// Prefetches lines of rows into the second-level cache, some at every call.
class LinesAhead {
 public:
  LinesAhead() = default;
  /// All of `rows` rows of `bytes` bytes, `stride` bytes apart, within so many calls.
  LinesAhead(const std::byte* first, std::int64_t rows, std::int64_t bytes, std::int64_t stride,
             std::int64_t calls)
      : row_(first), rows_(rows), bytes_(bytes), stride_(stride) {
    const auto beyond = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(first) % line);
    row_ -= beyond;
    bytes_ += beyond;
    lines_ = divide_up(rows * divide_up(bytes_, line), std::max<std::int64_t>(calls, 1));
  }

  void operator()() {
    for (std::int64_t i = 0; i < lines_ && rows_ > 0; ++i) {
      __builtin_prefetch(row_ + byte_, 0, 2);
      byte_ += line;
      if (byte_ < bytes_) continue;
      byte_ = 0;
      row_ += stride_;
      --rows_;
    }
  }

 private:
  static constexpr std::int64_t line = 64;
  const std::byte* row_ = nullptr;
  std::int64_t rows_ = 0, bytes_ = 0, stride_ = 0;
  std::int64_t byte_ = 0, lines_ = 0;
};

/// Prefetches of the rows that a thread packs next, and of the packed panel that it reads next.
struct Upcoming {
  LinesAhead source, panel;
  /// Steps of k between two calls.
  static constexpr std::int64_t steps = 8;

  void operator()() {
    source();
    panel();
  }
};

/// Where the kernel puts its result: c = alpha · acc + beta · c. Columns from `columns` on are left
/// alone.
struct MicroTarget {
  float* c;
  std::int64_t stride;
  int columns;
  float alpha, beta;
};

/// C = or += of it, from registers: `Adds` where beta is not zero, `Whole` where C has all columns.
template <bool Adds, bool Whole, class Vec, int Rows, int Vectors>
void put_sums(const Vec (&sums)[Rows][Vectors], const MicroTarget& target) {
  constexpr int lanes = Micro<Vec>::lanes;
  const Vec alpha(target.alpha);
  const Vec beta(target.beta);
  const auto put = [&](float* c, const Vec& sum, auto part) {
    Vec result = alpha * sum;
    if constexpr (Adds) result = tile::fma(beta, tile::load<Vec>(c, part), result);
    tile::store(c, result, part);
  };
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      float* c = target.c + r * target.stride + v * lanes;
      const int left = target.columns - v * lanes;
      if (Whole || left >= lanes) {
        put(c, sums[r][v], tile::WholeVector{});
      } else if (left > 0) {
        put(c, sums[r][v], tile::PartialVector{left});
      }
    }
  }
}

/// Beside the products it calls ahead() and, shortly before its end, prefetches C.
template <class Vec, int Rows>
void micro_kernel(const float* a, const float* b, std::int64_t depth, const MicroTarget& target,
                  Upcoming& ahead) {
  constexpr int lanes = Micro<Vec>::lanes;
  constexpr int vectors = Micro<Vec>::vectors;
  // Every loop over them is unrolled, or they would go through memory.
  Vec acc[Rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) acc[r][v] = Vec(0.0F);
  }
  const auto step = [&] {
    Vec column[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) column[v] = tile::load<Vec>(b + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Vec broadcast(a[r]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) acc[r][v] = tile::fma(broadcast, column[v], acc[r][v]);
    }
    // With AVX2 each step reads a line of B: from L2 it comes late unless prefetched.
    if constexpr (lanes == 8) __builtin_prefetch(b + 8 * Micro<Vec>::columns, 0, 3);
    a += Rows;
    b += Micro<Vec>::columns;
  };
  const std::int64_t meets_c = depth - (Rows + 8) * Upcoming::steps;
  const float* c = target.c;
  std::int64_t k = 0;
  for (; k + Upcoming::steps <= depth; k += Upcoming::steps) {
    ahead();
    if (k >= meets_c && c < target.c + Rows * target.stride) {
      for (int i = 0; i < target.columns; i += 16) __builtin_prefetch(c + i, 1, 3);
      c += target.stride;
    }
#pragma GCC unroll 2
    for (int i = 0; i < Upcoming::steps; ++i) step();
  }
  for (; k < depth; ++k) step();
  const bool whole = target.columns == Micro<Vec>::columns;
  if (target.beta == 0.0F) {
    whole ? put_sums<false, true>(acc, target) : put_sums<false, false>(acc, target);
  } else {
    whole ? put_sums<true, true>(acc, target) : put_sums<true, false>(acc, target);
  }
}

/// The kernel for a number of rows, 1 … Micro<Vec>::rows.
template <class Vec>
auto micro_kernel_for(std::int64_t rows) {
  using Kernel = void (*)(const float*, const float*, std::int64_t, const MicroTarget&, Upcoming&);
  static constexpr auto kernels = []<int... R>(std::integer_sequence<int, R...>) {
    return std::array<Kernel, sizeof...(R)>{micro_kernel<Vec, R + 1>...};
  }
  (std::make_integer_sequence<int, Micro<Vec>::rows>{});
  return kernels[static_cast<std::size_t>(rows - 1)];
}

}  // namespace katt::linear::impl
