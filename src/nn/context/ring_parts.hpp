#pragma once

#include <cstdint>

#include "nn/context/ring_attention.hpp"

/// Parts of the tensors of ranks that share sequences.
namespace katt::nn::impl {

/// Rows begin … of every sequence.
inline TensorRef<4> seq_part(TensorRef<4> tensor, std::int64_t begin, std::int64_t count) {
  tensor.data = static_cast<std::byte*>(tensor.data) +
                static_cast<std::size_t>(begin * tensor.stride[2]) * size_of(tensor.dtype);
  tensor.extent[2] = count;
  return tensor;
}

inline TensorRef<3> seq_part(TensorRef<3> values, std::int64_t begin, std::int64_t count) {
  values.data = static_cast<float*>(values.data) + begin * values.stride[2];
  values.extent[2] = count;
  return values;
}

/// Rows of a rank by heads: queries, and keys (part 0) or values (part 1).
inline TensorRef<4> query_heads(const RingShape& shape, const TensorRef<2>& rows) {
  return heads_of(rows, 0, shape.batch, shape.heads, shape.head_dim);
}
inline TensorRef<4> kv_heads(const RingShape& shape, const TensorRef<2>& rows, std::int64_t part) {
  return heads_of(rows, part * shape.kv_heads * shape.head_dim, shape.batch, shape.kv_heads,
                  shape.head_dim);
}

}  // namespace katt::nn::impl
