#pragma once

#include <cstdint>

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

/// On a host it runs on the threads of `exec` and returns when it is done; the bits of C depend on
/// their number. On a device it is launched on the instance.
template <class Exec>
void library_product(const Exec& exec, const LibraryProduct& product,
                     const LibraryMatrix<const float>& a, const LibraryMatrix<const float>& b,
                     const LibraryMatrix<float>& c);

}  // namespace katt
