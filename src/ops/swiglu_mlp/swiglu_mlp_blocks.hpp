#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/parts.hpp"
#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// Blocks of matrices and of the workspace, for both variants of swiglu_mlp.
namespace katt::swiglu_mlp::impl {

/// A range of rows or columns.
struct Range {
  std::int64_t begin, count;
};

/// Calls f(range) for the blocks of at most `size` that make up [0, total); once, with an empty
/// block, where total is 0: a sum of nothing is written too.
template <class F>
void for_each_block(std::int64_t total, std::int64_t size, const F& f) {
  std::int64_t begin = 0;
  do {
    f(Range{begin, std::min(size, total - begin)});
    begin += size;
  } while (begin < total);
}

template <bool Const>
BasicTensorRef<2, Const> part(const BasicTensorRef<2, Const>& matrix, Range rows, Range columns) {
  return katt::columns_of(katt::rows_of(matrix, rows.begin, rows.count), columns.begin,
                          columns.count);
}

template <bool Const>
BasicTensorRef<2, Const> rows_of(const BasicTensorRef<2, Const>& matrix, Range rows) {
  return katt::rows_of(matrix, rows.begin, rows.count);
}

template <bool Const>
BasicTensorRef<2, Const> columns_of(const BasicTensorRef<2, Const>& matrix, Range columns) {
  return katt::columns_of(matrix, columns.begin, columns.count);
}

/// Hands out the workspace piece by piece. Without memory it only counts.
class Arena {
 public:
  Arena() = default;
  explicit Arena(const Workspace& workspace)
      : base_(static_cast<std::byte*>(workspace.data)), bytes_(workspace.bytes) {}

  TensorRef<2> matrix(Dtype dtype, std::int64_t rows, std::int64_t columns) {
    return {
        take(static_cast<std::size_t>(rows * columns) * size_of(dtype)), dtype, {rows, columns}};
  }
  Workspace rest() const {
    return base_ == nullptr ? Workspace{} : Workspace{base_ + used_, bytes_ - used_};
  }
  std::size_t used() const { return used_; }

 private:
  void* take(std::size_t bytes) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += aligned_bytes(bytes);
    return piece;
  }

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
};

/// Stands in for a run to find how much workspace its products need.
template <class Exec>
class ProductSizer {
 public:
  explicit ProductSizer(const Exec& exec) : exec_(exec) {}
  void product(const linear::GemmArgs& args, const char* /*label*/) {
    bytes_ = std::max(bytes_, linear::gemm_workspace_bytes(exec_, args));
  }
  std::size_t bytes() const { return bytes_; }

 private:
  const Exec& exec_;
  std::size_t bytes_ = 0;
};

}  // namespace katt::swiglu_mlp::impl
