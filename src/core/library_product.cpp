#include "core/library_product.hpp"

#include <type_traits>
#include <utility>

#include <KokkosBlas2_gemv.hpp>
#include <KokkosBlas3_gemm.hpp>

#include "core/execution.hpp"
#include "core/library_threads.hpp"

namespace katt {

template <class Exec>
void library_product(const Exec& exec, const LibraryProduct& product,
                     const LibraryMatrix<const float>& a, const LibraryMatrix<const float>& b,
                     const LibraryMatrix<float>& c) {
  // Of the device of `exec`, not only of its memory: KokkosBlas passes views of another device than
  // that of the execution space to its own slow kernel instead of the library.
  using Device = typename Exec::device_type;
  const auto view = [](const auto& matrix) {
    using Element = std::remove_pointer_t<decltype(matrix.data)>;
    using Rows = Kokkos::View<Element**, Kokkos::LayoutRight, Device,
                              Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
    return Kokkos::subview(Rows(matrix.data, matrix.rows, matrix.stride),
                           std::make_pair(std::int64_t{0}, matrix.rows),
                           std::make_pair(std::int64_t{0}, matrix.columns));
  };
  const auto call = [&] {
    // Libraries take a product of one row for any other and pack all of B for it, which a small B
    // does not feel.
    constexpr std::int64_t small = 4096;
    if (c.rows == 1 && !product.trans_a && b.rows * b.columns > small) {
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
  };
  if constexpr (is_host_v<Exec>) {
    const LibraryThreads threads(exec.concurrency());
    call();
  } else {
    call();
  }
}

#define KATT_INSTANTIATE_LIBRARY_PRODUCT(Exec)                               \
  template void library_product<Exec>(                                       \
      const Exec&, const LibraryProduct&, const LibraryMatrix<const float>&, \
      const LibraryMatrix<const float>&, const LibraryMatrix<float>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_LIBRARY_PRODUCT)

}  // namespace katt
