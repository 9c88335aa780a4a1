#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "ops/ternary_linear/ternary_linear_digits.hpp"
#include "tile/vec/vec.hpp"

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
  std::int64_t bytes_ahead;  ///< how far behind what is read dot() asks for what comes next
};

/// sums[n][r] = Σ over the lanes of partial[r][n].
template <class Vector, int R, int N>
KOKKOS_FORCEINLINE_FUNCTION void reduce(const typename Vector::Sums (&partial)[R][N],
                                        std::int32_t (&sums)[N][R]) {
  for (int n = 0; n < N; ++n) {
    if constexpr (R == 4) {
      const typename Vector::Sums of_token[4] = {partial[0][n], partial[1][n], partial[2][n],
                                                 partial[3][n]};
      Vector::totals(of_token, sums[n]);
    } else {
      for (int r = 0; r < R; ++r) sums[n][r] = Vector::total(partial[r][n]);
    }
  }
}

/// sums[n][r] = Σ x·d of row r and token n. Each row is unpacked once for the N tokens.
template <class Vector, PackFormat Format, int R, int N>
KOKKOS_FORCEINLINE_FUNCTION void dot(const DotBlock<R, N>& block, std::int32_t (&sums)[N][R]) {
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
    for (int r = 0; r < R; ++r) {
      const std::uint8_t* row = block.rows + r * block.row_stride + byte;
      tile::prefetch(row + block.bytes_ahead);
      rows[r] = Row(row);
    }
    for (int digit = 0; digit < digits_per_byte(Format); ++digit) {
      typename Vector::Bytes d[R];
      for (int r = 0; r < R; ++r) d[r] = rows[r].next();
      for (int n = 0; n < N; ++n) {
        const auto values = Vector::load(x + n * block.token_stride + digit * block_bytes);
        for (int r = 0; r < R; ++r) partial[r][n] = Vector::dot(partial[r][n], d[r], values);
      }
    }
  }
  reduce<Vector>(partial, sums);
}

/// of_row[n] += x·d, lane by lane, of one row. Digits of a byte have sums of their own where registers
/// suffice: a single chain of sums waits for each product.
template <class Vector, PackFormat Format, int R, int N>
KOKKOS_FORCEINLINE_FUNCTION void add_row(const DotBlock<R, N>& block, const std::uint8_t* row,
                                         typename Vector::Sums (&of_row)[N]) {
  constexpr bool in_place = Format == PackFormat::two_bit && Vector::multiplies_all_bytes;
  using Row = std::conditional_t<in_place, DigitsInPlace<Vector>, Digits<Vector, Format>>;
  constexpr int digits = digits_per_byte(Format);
  constexpr int chains = in_place || N < 4 ? digits : 1;
  constexpr std::int64_t bytes_ahead = tile::is_zen ? 8192 : 4096;
  typename Vector::Sums of_chain[chains][N];
  for (int chain = 0; chain < chains; ++chain) {
    for (int n = 0; n < N; ++n) of_chain[chain][n] = Vector::zero();
  }
  const std::int64_t vectors = block.row_bytes / Vector::width;
  for (std::int64_t v = block.first; v < vectors; v += block.step) {
    const std::int64_t byte = v * Vector::width;
    const std::int8_t* x =
        block.tokens + byte / block_bytes * block_weights(Format) + byte % block_bytes;
    tile::prefetch(row + byte + bytes_ahead);
    Row rest(row + byte);
    for (int digit = 0; digit < digits; ++digit) {
      const auto d = rest.next();
      for (int n = 0; n < N; ++n) {
        const auto values = Vector::load(x + n * block.token_stride + digit * block_bytes);
        auto& sum = of_chain[digit % chains][n];
        sum = Vector::dot(sum, d, values);
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    of_row[n] = of_chain[0][n];
    for (int chain = 1; chain < chains; ++chain) {
      of_row[n] = Vector::add(of_row[n], Row::value(of_chain[chain][n], chain));
    }
  }
}

/// dot(), one row after the other: the rows are read as one stream. Rows side by
/// side are read at a third of that speed: each is too short for a processor to foresee its next
/// line.
template <class Vector, PackFormat Format, int R, int N>
KOKKOS_FORCEINLINE_FUNCTION void dot_in_turn(const DotBlock<R, N>& block,
                                             std::int32_t (&sums)[N][R]) {
  typename Vector::Sums partial[R][N];
  for (int r = 0; r < R; ++r) {
    add_row<Vector, Format>(block, block.rows + r * block.row_stride, partial[r]);
  }
  reduce<Vector>(partial, sums);
}

}  // namespace katt::ternary_linear::impl
