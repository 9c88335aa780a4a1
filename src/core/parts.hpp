#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/tensor.hpp"

/// Parts of a workspace and of a matrix.
namespace katt {

/// Bytes rounded up, so that the next part of a workspace begins at a multiple of `alignment`: a
/// cache line.
constexpr std::size_t aligned_bytes(std::size_t bytes, std::size_t alignment = 64) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// The same for `count` elements of type T.
template <class T>
constexpr std::size_t aligned_bytes(std::int64_t count) {
  return aligned_bytes(static_cast<std::size_t>(count) * sizeof(T));
}

/// The same for the elements of a tensor, dense.
template <int Rank, bool Const>
std::size_t aligned_bytes(const BasicTensorRef<Rank, Const>& tensor) {
  return aligned_bytes(static_cast<std::size_t>(tensor.size()) * size_of(tensor.dtype));
}

namespace impl {

template <int Rank, bool Const>
BasicTensorRef<Rank, Const> from_element(BasicTensorRef<Rank, Const> tensor, std::int64_t offset) {
  using Byte = std::conditional_t<Const, const std::byte, std::byte>;
  if (tensor.data != nullptr) {
    tensor.data =
        static_cast<Byte*>(tensor.data) + offset * static_cast<std::int64_t>(size_of(tensor.dtype));
  }
  return tensor;
}

}  // namespace impl

/// Elements first … first + count − 1 of a vector. A vector without memory gives one without
/// memory.
template <bool Const>
BasicTensorRef<1, Const> elements_of(const BasicTensorRef<1, Const>& vector, std::int64_t first,
                                     std::int64_t count) {
  BasicTensorRef<1, Const> part = impl::from_element(vector, first * vector.stride[0]);
  part.extent[0] = count;
  return part;
}

/// Rows first … first + count − 1 of a matrix (rows, columns). A matrix without memory gives one
/// without memory.
template <bool Const>
BasicTensorRef<2, Const> rows_of(const BasicTensorRef<2, Const>& matrix, std::int64_t first,
                                 std::int64_t count) {
  BasicTensorRef<2, Const> part = impl::from_element(matrix, first * matrix.stride[0]);
  part.extent[0] = count;
  return part;
}

/// Rows of head h of batch b of a tensor (batch, head, rows, columns).
template <bool Const>
BasicTensorRef<2, Const> rows_of(const BasicTensorRef<4, Const>& tensor, std::int64_t b,
                                 std::int64_t h) {
  BasicTensorRef<2, Const> rows;
  rows.data = tensor.data;
  rows.dtype = tensor.dtype;
  rows.extent = {tensor.extent[2], tensor.extent[3]};
  rows.stride = {tensor.stride[2], tensor.stride[3]};
  return impl::from_element(rows, b * tensor.stride[0] + h * tensor.stride[1]);
}

/// Columns first … first + count − 1 of a matrix (rows, columns).
template <bool Const>
BasicTensorRef<2, Const> columns_of(const BasicTensorRef<2, Const>& matrix, std::int64_t first,
                                    std::int64_t count) {
  BasicTensorRef<2, Const> part = impl::from_element(matrix, first);
  part.extent[1] = count;
  return part;
}

}  // namespace katt
