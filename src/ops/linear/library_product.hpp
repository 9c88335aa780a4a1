#pragma once

#include <cstdint>
#include <functional>

#include "core/execution.hpp"

/// Matrix products of f32 by the BLAS library (KokkosBlas::gemm: OpenBLAS on a host, cuBLAS on a
/// device where it is built in). One source file instantiates them: the library's headers are
/// heavy.
namespace katt {

/// A row-major f32 matrix; rows may be any distance apart, except that the library takes a matrix
/// of one column for a dense one.
template <class T>
struct LibraryMatrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;

  LibraryMatrix(T* pointer, std::int64_t row_count, std::int64_t column_count)
      : LibraryMatrix(pointer, row_count, column_count, column_count) {}
  LibraryMatrix(T* pointer, std::int64_t row_count, std::int64_t column_count,
                std::int64_t distance)
      : data(pointer), rows(row_count), columns(column_count), stride(distance) {}
  /// A writable matrix is also a readable one.
  operator LibraryMatrix<const T>() const {  // NOLINT(google-explicit-constructor)
    return {data, rows, columns, stride};
  }
};

/// C = alpha · op(A) · op(B) + beta · C
struct LibraryProduct {
  bool trans_a = false;
  bool trans_b = false;
  float alpha = 1.0F;
  float beta = 0.0F;
};

/// On a host each thread of `exec` computes a piece of C by a call of its own: within one call of all threads
/// each waits for what another packs, for as long as another program has that one's processor. It returns when
/// it is done; the bits of C depend on the number of threads. On a device it is launched on the instance.
template <class Exec>
void library_product(const Exec& exec, const char* label, const LibraryProduct& product,
                     const LibraryMatrix<const float>& a, const LibraryMatrix<const float>& b,
                     const LibraryMatrix<float>& c);

/// A product with its operands.
struct LibraryCall {
  LibraryProduct product;
  LibraryMatrix<const float> a, b;
  LibraryMatrix<float> c;
};

/// `count` products, call(0), …, that do not depend on each other, on a host: a thread computes whole ones, as
/// the batched products of libraries do, so that none waits for another within a product.
void library_products(const Host& exec, const char* label, std::int64_t count,
                      const std::function<LibraryCall(std::int64_t)>& call);

}  // namespace katt
