#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/ternary_linear/ternary_linear_digits.hpp"

/// Integer products of packed rows with quantised tokens. With digits d = w + 1:
///   Σ_i x_i·w_i = Σ_i x_i·d_i − Σ_i x_i
/// dot() gives the first sum; the second is known from quantising the token.
namespace katt::ternary_linear::impl {

/// R packed rows, `row_stride` bytes apart, and N tokens of bytes, `token_stride` apart; a part of
/// the row: every `step`-th vector of bytes from `first` on (the share of one thread).
template <int R, int N>
struct DotBlock {
  const std::uint8_t* rows;
  std::int64_t row_stride;
  const std::int8_t* tokens;
  std::int64_t token_stride;
  std::int64_t row_bytes;
  int first;
  int step;
};

/// sums[r][n] = Σ x·d of row r and token n. Each row is unpacked once for the N tokens.
template <class Vector, PackFormat Format, int R, int N>
KOKKOS_FORCEINLINE_FUNCTION void dot(const DotBlock<R, N>& block, std::int32_t (&sums)[R][N]) {
  typename Vector::Sums partial[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) partial[r][n] = Vector::zero();
  }
  const std::int64_t vectors = block.row_bytes / Vector::width;
  for (std::int64_t v = block.first; v < vectors; v += block.step) {
    const std::int64_t byte = v * Vector::width;
    const std::int8_t* x =
        block.tokens + byte / block_bytes * block_weights(Format) + byte % block_bytes;
    using Row = Digits<Vector, Format>;
    Row rows[R];
    for (int r = 0; r < R; ++r) rows[r] = Row(block.rows + r * block.row_stride + byte);
    for (int digit = 0; digit < digits_per_byte(Format); ++digit) {
      typename Vector::Bytes d[R];
      for (int r = 0; r < R; ++r) d[r] = rows[r].next();
      for (int n = 0; n < N; ++n) {
        const auto values = Vector::load(x + n * block.token_stride + digit * block_bytes);
        for (int r = 0; r < R; ++r) partial[r][n] = Vector::dot(partial[r][n], d[r], values);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) sums[r][n] = Vector::total(partial[r][n]);
  }
}

}  // namespace katt::ternary_linear::impl
