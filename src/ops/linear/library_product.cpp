#include "ops/linear/library_product.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <KokkosBlas2_gemv.hpp>
#include <KokkosBlas3_gemm.hpp>
#include <KokkosBlas_Host_tpl.hpp>

#include "core/execution.hpp"
#include "ops/linear/library_threads.hpp"

namespace katt {

namespace {

/// Libraries take a product of one row for any other and pack all of B for it, which a small B
/// does not feel.
bool is_vector_product(const LibraryProduct& product, const LibraryMatrix<const float>& b,
                       const LibraryMatrix<float>& c) {
  constexpr std::int64_t small = 4096;
  return c.rows == 1 && !product.trans_a && b.rows * b.columns > small;
}

/// For a few rows they pack all of B, too, unless the product is small. Vector products read it once if each of
/// them takes a part that stays in a cache: up to six rows that is faster (docs/performance.md).
constexpr std::int64_t cached_part = std::int64_t{1} << 16;
bool is_few_vector_products(const LibraryProduct& product, const LibraryMatrix<const float>& b,
                            const LibraryMatrix<float>& c) {
  constexpr std::int64_t most_rows = 6;
  constexpr std::int64_t small = 1'000'000;  // in multiply-adds, of OpenBLAS
  return c.rows > 1 && c.rows <= most_rows && product.trans_b && !product.trans_a &&
         c.rows * b.rows * b.columns > small;
}

/// A product on this thread, of row-major matrices by the library's column-major ones. KokkosBlas itself
/// tells tools of every call, which several threads must not do at a time.
void multiply_alone(const LibraryCall& call) {
  using Blas = KokkosBlas::Impl::HostBlas<float>;
  const auto extent = [](std::int64_t value) { return static_cast<int>(value); };
  const auto& [product, a, b, c] = call;
  const auto stride = [&](const auto& matrix) { return std::max(1, extent(matrix.stride)); };
  if (is_vector_product(product, b, c)) {
    return Blas::gemv(product.trans_b ? 'T' : 'N', extent(b.columns), extent(b.rows), product.alpha,
                      b.data, stride(b), a.data, 1, product.beta, c.data, 1);
  }
  if (is_few_vector_products(product, b, c)) {
    const std::int64_t part =
        std::max<std::int64_t>(1, cached_part / std::max<std::int64_t>(1, b.columns));
    for (std::int64_t first = 0; first < b.rows; first += part) {
      const std::int64_t count = std::min(part, b.rows - first);
      for (std::int64_t row = 0; row < c.rows; ++row) {
        Blas::gemv('T', extent(b.columns), extent(count), product.alpha, b.data + first * b.stride,
                   stride(b), a.data + row * a.stride, 1, product.beta,
                   c.data + row * c.stride + first, 1);
      }
    }
    return;
  }
  Blas::gemm(product.trans_b ? 'T' : 'N', product.trans_a ? 'T' : 'N', extent(c.columns),
             extent(c.rows), extent(product.trans_a ? a.rows : a.columns), product.alpha, b.data,
             stride(b), a.data, stride(a), product.beta, c.data, stride(c));
}

/// How many rows and columns of pieces C is cut into, `threads` in all where they are not too small: so that the
/// least of A and B is read twice.
struct Grid {
  static constexpr std::int64_t unit = 16;  ///< elements of a line of C
  std::int64_t rows = 1, columns = 1;       ///< of a piece
  std::int64_t across = 0;                  ///< pieces side by side
  std::int64_t pieces = 0;

  Grid(const LibraryMatrix<float>& c, std::int64_t threads) {
    const auto part = [](std::int64_t extent, std::int64_t parts) {
      return ((extent + parts - 1) / parts + unit - 1) / unit * unit;
    };
    const auto count = [](std::int64_t extent, std::int64_t of_part) {
      return (extent + of_part - 1) / of_part;
    };
    for (std::int64_t down = 1; down <= threads; ++down) {
      if (threads % down != 0) continue;
      const std::int64_t r = std::min(c.rows, part(c.rows, down));
      const std::int64_t n = std::min(c.columns, part(c.columns, threads / down));
      const std::int64_t all = count(c.rows, r) * count(c.columns, n);
      if (all > pieces || (all == pieces && r + n < rows + columns)) {
        rows = r;
        columns = n;
        across = count(c.columns, n);
        pieces = all;
      }
    }
  }
};

/// The product for a piece of C.
LibraryCall piece_of(LibraryCall call, const Grid& grid, std::int64_t piece) {
  auto& [product, a, b, c] = call;
  const std::int64_t row = piece / grid.across * grid.rows;
  const std::int64_t column = piece % grid.across * grid.columns;
  a.data += product.trans_a ? row : row * a.stride;
  b.data += product.trans_b ? column * b.stride : column;
  c.data += row * c.stride + column;
  c.rows = std::min(grid.rows, c.rows - row);
  c.columns = std::min(grid.columns, c.columns - column);
  (product.trans_a ? a.columns : a.rows) = c.rows;
  (product.trans_b ? b.rows : b.columns) = c.columns;
  return call;
}

/// On a device.
template <class Exec>
void multiply_on_device(const Exec& exec, const LibraryCall& call) {
  // The views name the device of `exec`, not only its memory: KokkosBlas passes views of another
  // device than that of the execution space to its own slow kernel instead of the library.
  using Device = typename Exec::device_type;
  const auto& [product, a, b, c] = call;
  const auto view = [](const auto& matrix) {
    using Element = std::remove_pointer_t<decltype(matrix.data)>;
    using Rows = Kokkos::View<Element**, Kokkos::LayoutRight, Device,
                              Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    return Kokkos::subview(Rows(matrix.data, matrix.rows, matrix.stride),
                           std::make_pair(std::int64_t{0}, matrix.rows),
                           std::make_pair(std::int64_t{0}, matrix.columns));
  };
  if (is_vector_product(product, b, c)) {
    const auto vector = [](const auto& matrix) {
      using Element = std::remove_pointer_t<decltype(matrix.data)>;
      return Kokkos::View<Element*, Kokkos::LayoutRight, Device,
                          Kokkos::MemoryTraits<Kokkos::Unmanaged>>(matrix.data, matrix.columns);
    };
    return KokkosBlas::gemv(exec, product.trans_b ? "N" : "T", product.alpha, view(b), vector(a),
                            product.beta, vector(c));
  }
  KokkosBlas::gemm(exec, product.trans_a ? "T" : "N", product.trans_b ? "T" : "N", product.alpha,
                   view(a), view(b), product.beta, view(c));
}

}  // namespace

template <class Exec>
void library_product(const Exec& exec, const char* label, const LibraryProduct& product,
                     const LibraryMatrix<const float>& a, const LibraryMatrix<const float>& b,
                     const LibraryMatrix<float>& c) {
  if (c.rows == 0 || c.columns == 0) return;
  const LibraryCall call{product, a, b, c};
  if constexpr (is_host_v<Exec>) {
    const Grid grid(c, exec.concurrency());
    library_products(exec, label, grid.pieces,
                     [&](std::int64_t piece) { return piece_of(call, grid, piece); });
  } else {
    multiply_on_device(exec, call);
  }
}

void library_products(const Host& exec, const char* label, std::int64_t count,
                      const std::function<LibraryCall(std::int64_t)>& call) {
  const LibraryThreads one(1);
  Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>
      each(exec, 0, count);
  each.set_chunk_size(1);
  Kokkos::parallel_for(label, each, [&](std::int64_t i) { multiply_alone(call(i)); });
}

#define KATT_INSTANTIATE_LIBRARY_PRODUCT(Exec)                                            \
  template void library_product<Exec>(                                                    \
      const Exec&, const char*, const LibraryProduct&, const LibraryMatrix<const float>&, \
      const LibraryMatrix<const float>&, const LibraryMatrix<float>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_LIBRARY_PRODUCT)

}  // namespace katt
