#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/check.hpp"
#include "core/tensor.hpp"

namespace katt::nn {

/// Hands out tensors one after the other from a block of memory. The caller makes the same sequence
/// of calls twice: first without memory, to count the bytes (the tensors then have extents, dtypes
/// and addresses that nobody may read), then with a block of that size.
class Arena {
 public:
  static constexpr std::size_t alignment = 256;

  Arena() = default;
  explicit Arena(void* memory) : base_(static_cast<std::byte*>(memory)) {}

  template <int Rank>
  TensorRef<Rank> tensor(Dtype dtype, std::array<std::int64_t, Rank> extents) {
    auto bytes = static_cast<std::int64_t>(size_of(dtype));
    for (const std::int64_t extent : extents) {
      if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > most_bytes) {
        throw InputError("a tensor of " + shape_text(extents) +
                         " elements: expected less than 2^56 bytes");
      }
    }
    return {take(static_cast<std::size_t>(bytes)), dtype, extents};
  }

  std::int64_t* integers(std::int64_t count) {
    return static_cast<std::int64_t*>(take(static_cast<std::size_t>(count) * sizeof(std::int64_t)));
  }

  /// Bytes handed out so far.
  [[nodiscard]] std::size_t bytes() const { return used_; }

 private:
  void* take(std::size_t bytes) {
    std::byte* const here = base_ + used_;
    used_ += (bytes + alignment - 1) / alignment * alignment;
    return here;
  }

  /// A limit at which no sum of such tensors overflows.
  static constexpr std::int64_t most_bytes = std::int64_t{1} << 56;

  /// Address at which counting begins: not null, which would mean "no tensor".
  std::byte* base_ = reinterpret_cast<std::byte*>(alignment);  // NOLINT
  std::size_t used_ = 0;
};

/// Columns first … first + count − 1 of a matrix.
inline TensorRef<2> columns(TensorRef<2> matrix, std::int64_t first, std::int64_t count) {
  matrix.data = static_cast<std::byte*>(matrix.data) +
                static_cast<std::size_t>(first) * size_of(matrix.dtype);
  matrix.extent[1] = count;
  return matrix;
}

/// Columns first … of a (batch · seq, columns) matrix as (batch, heads, seq, head_dim).
inline TensorRef<4> heads_of(const TensorRef<2>& rows, std::int64_t first, std::int64_t batch,
                             std::int64_t heads, std::int64_t head_dim) {
  const std::int64_t seq = rows.extent[0] / batch;
  TensorRef<4> result(columns(rows, first, heads * head_dim).data, rows.dtype,
                      {batch, heads, seq, head_dim});
  result.stride = {seq * rows.stride[0], head_dim, rows.stride[0], 1};
  return result;
}

}  // namespace katt::nn
