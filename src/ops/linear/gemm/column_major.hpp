#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// Products as a BLAS sees them: column by column.
namespace katt::linear::impl {

/// A matrix whose columns are contiguous and lie `leading` elements apart.
struct ColumnMajor {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t leading = 0;

  /// The transpose of a row-major matrix is this, without a copy. The stride of a matrix of one row
  /// says nothing.
  template <bool Const>
  static ColumnMajor transposed(const BasicTensorRef<2, Const>& matrix) {
    return {matrix.extent[1], matrix.extent[0],
            std::max({matrix.stride[0], matrix.extent[1], std::int64_t{1}})};
  }
};

/// Cᵀ = op(B)ᵀ · op(A)ᵀ is the product that is asked for: its first factor is what lies at B, its
/// second what lies at A.
struct ColumnMajorProduct {
  ColumnMajor first, second, result;
  bool trans_first = false;
  bool trans_second = false;

  explicit ColumnMajorProduct(const GemmArgs& args)
      : first(ColumnMajor::transposed(args.b)),
        second(ColumnMajor::transposed(args.a)),
        result(ColumnMajor::transposed(args.c)),
        trans_first(args.trans_b),
        trans_second(args.trans_a) {}
};

}  // namespace katt::linear::impl
