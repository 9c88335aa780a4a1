#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/ternary_linear/ternary_linear_dot.hpp"
#include "tile/rows/columns.hpp"

/// Functors of the packed variants.
namespace katt::ternary_linear::impl {

/// v rounded to the nearest integer, half to even, for |v| < 2^22: adding 1.5·2^52, in f32 1.5·2^23,
/// leaves no bits for a fraction. Unlike a call of rint() it compiles to vector additions everywhere.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real round_half_even(Real v) {
  constexpr Real magic = std::is_same_v<Real, double> ? Real(0x1.8p52) : Real(0x1.8p23);
  return (v + magic) - magic;
}

/// The least that a token is divided by.
inline constexpr double least_largest = 1e-5;

/// max(max |row|, 1e-5), what a token is divided by.
template <class Exec, class Team, class T>
KOKKOS_INLINE_FUNCTION double token_largest(const Team& team, const T* row, std::int64_t n) {
  tile::RowMax<Exec, tile::column_slots> found(0.0F);
  tile::for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c, int slot) {
    found.add(V(Kokkos::abs(tile::load<V>(row + c))), slot);
  });
  const auto largest = static_cast<double>(found.total(team));
  return largest > least_largest ? largest : least_largest;
}

/// Calls f(largest) with the type in which quotients 127 · x / largest round as the definition says. That is
/// f64; f32 moves one of f32 operands off or onto a half. In 16 bits 127 · x is exact in f32, and
/// with operands of 11 bits a quotient of the size 2^7−d that is no half lies at least 2^−12−d away
/// from one, where f32 rounds by 2^−18−d.
template <class T, class F>
KOKKOS_FORCEINLINE_FUNCTION void with_divisor(double largest, const F& f) {
  constexpr double most = 1e36;  // 127 · x is finite
  if constexpr (sizeof(T) == 2) {
    if (largest > least_largest && largest < most) return f(static_cast<float>(largest));
  }
  f(largest);
}

/// x_q of one value, not yet an integer; NaN stays NaN. 127 · x is exact and the quotient is rounded
/// once, so that halves stay halves: x · s_x, with a rounded s_x, may fall beside one, and a
/// compiler may or may not fuse that product with the addition that rounds it.
template <class T, class Real>
KOKKOS_FORCEINLINE_FUNCTION Real quantised(const T& value, Real largest) {
  const Real exact = static_cast<Real>(static_cast<float>(value)) * Real(127) / largest;
  const Real rounded = round_half_even(exact);
  const Real above = rounded < Real(-128) ? Real(-128) : rounded;
  return above > Real(127) ? Real(127) : above;
}

/// Tokens as bytes: rows of `stride` values, zero beyond in_features.
struct QuantisedTokens {
  std::int8_t* values;  ///< (tokens, stride)
  float* inverse;     ///< (tokens): 1 / s_x; NaN where the token holds a NaN, which has no integer
  std::int32_t* sum;  ///< (tokens): Σ x_q
  std::int64_t stride;
};

/// x_q, 1 / s_x and Σ x_q of every token, one team each.
template <class Exec, class T>
struct QuantiseTokens {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;

  StridedView<const T, 2, Memory> x;
  QuantisedTokens out;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const auto n = static_cast<std::int64_t>(x.extent(1));
    const T* row = &x(t, 0);
    std::int8_t* target = out.values + t * out.stride;
    const double largest = token_largest<Exec>(team, row, n);

    const std::int64_t first = team.team_rank();
    const std::int64_t step = team.team_size();
    std::int32_t sum = 0;
    std::int32_t undefined = 0;
    with_divisor<T>(largest, [&](auto divisor) {
      if constexpr (is_host_v<Exec>) {
        for (std::int64_t i = 0; i < n; i += piece) {
          const std::int64_t count = n - i < piece ? n - i : piece;
          quantise_piece(row + i, count, divisor, target + i, sum, undefined);
        }
      } else {
        for (std::int64_t i = first; i < n; i += step) {
          quantise_piece(row + i, 1, divisor, target + i, sum, undefined);
        }
      }
    });
    for (std::int64_t i = n + first; i < out.stride; i += step) target[i] = 0;
    team.team_reduce(Kokkos::Sum<std::int32_t>(sum));
    team.team_reduce(Kokkos::Sum<std::int32_t>(undefined));
    if (team.team_rank() == 0) {
      out.inverse[t] = undefined == 0 ? static_cast<float>(largest / 127.0)
                                      : Kokkos::Experimental::quiet_NaN_v<float>;
      out.sum[t] = sum;
    }
  }

 private:
  static constexpr std::int64_t piece = 64;

  /// In steps of one type each, which compilers make vectors of.
  template <class Real>
  KOKKOS_FORCEINLINE_FUNCTION static void quantise_piece(const T* from, std::int64_t count,
                                                         Real largest, std::int8_t* target,
                                                         std::int32_t& sum,
                                                         std::int32_t& undefined) {
    constexpr std::int64_t most = is_host_v<Exec> ? piece : 1;
    Real integers[most];
    std::int32_t values[most];
    for (std::int64_t j = 0; j < count; ++j) integers[j] = quantised(from[j], largest);
    for (std::int64_t j = 0; j < count; ++j) {
      const bool is_defined =
          integers[j] == integers[j];  // NOLINT(misc-redundant-expression): not for NaN
      values[j] = static_cast<std::int32_t>(is_defined ? integers[j] : Real(0));
      undefined += is_defined ? 0 : 1;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      target[j] = static_cast<std::int8_t>(values[j]);
      sum += values[j];
    }
  }
};

/// out = (Σ x_q·d − Σ x_q) · s_w / s_x. A team takes `team_rows` packed rows, which stay in cache,
/// and all tokens, a few at a time.
template <class Exec, class T, PackFormat Format>
struct PackedForward {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  using Vector = BytesOf<Exec>;
  static constexpr int block_rows = 4;    ///< rows that share the load of a token
  static constexpr int block_tokens = 4;  ///< tokens that share the unpacking of a row
  static constexpr int team_rows = is_host_v<Exec> ? 32 : block_rows;

  const std::uint8_t* rows;
  const float* weight_scales;
  std::int64_t row_bytes;
  QuantisedTokens tokens;
  StridedView<T, 2, Memory> out;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t item) const {
    const auto out_features = static_cast<std::int64_t>(out.extent(1));
    const auto count = static_cast<std::int64_t>(out.extent(0));
    const std::int64_t begin = item * team_rows;
    const std::int64_t end = Kokkos::min<std::int64_t>(begin + team_rows, out_features);
    std::int64_t t = 0;
    for (; t + block_tokens <= count; t += block_tokens)
      row_range<block_tokens>(team, begin, end, t);
    if (count - t == 3) return row_range<3>(team, begin, end, t);
    if (count - t == 2) return row_range<2>(team, begin, end, t);
    if (count - t == 1) row_range<1>(team, begin, end, t);
  }

  template <int N>
  KOKKOS_INLINE_FUNCTION void row_range(const Team& team, std::int64_t begin, std::int64_t end,
                                        std::int64_t token) const {
    std::int64_t row = begin;
    for (; row + block_rows <= end; row += block_rows) block<block_rows, N>(team, row, token);
    for (; row < end; ++row) block<1, N>(team, row, token);
  }

  template <int R, int N>
  KOKKOS_INLINE_FUNCTION void block(const Team& team, std::int64_t row, std::int64_t token) const {
    std::int32_t sums[N][R];
    const DotBlock<R, N> block{rows + row * row_bytes,
                               row_bytes,
                               tokens.values + token * tokens.stride,
                               tokens.stride,
                               row_bytes,
                               team.team_rank(),
                               team.team_size(),
                               token == 0 ? R * row_bytes : 0};
    if (is_host_v<Exec> && out.extent(0) <= block_tokens) {
      dot_in_turn<Vector, Format>(block, sums);
    } else {
      dot<Vector, Format>(block, sums);
    }
    for (int n = 0; n < N; ++n) {
      const std::int64_t t = token + n;
      for (int r = 0; r < R; ++r) team.team_reduce(Kokkos::Sum<std::int32_t>(sums[n][r]));
      if (team.team_rank() > 0) continue;
      const std::int32_t sum = tokens.sum[t];
      const float inverse = tokens.inverse[t];
      float values[R];  // a vector's work
      for (int r = 0; r < R; ++r) {
        values[r] = static_cast<float>(sums[n][r] - sum) * weight_scales[row + r] * inverse;
      }
      for (int r = 0; r < R; ++r) out(t, row + r) = static_cast<T>(values[r]);
    }
  }
};

/// x_d = x_q / s_x of every token, rounded to the dtype, dense; one team each.
template <class Exec, class T>
struct FakeQuantise {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  StridedView<const T, 2, Memory> x;
  T* out;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t t) const {
    const auto n = static_cast<std::int64_t>(x.extent(1));
    const T* row = &x(t, 0);
    T* target = out + t * n;
    const double largest = token_largest<Exec>(team, row, n);
    const std::int64_t step = team.team_size();
    with_divisor<T>(largest, [&]<class Real>(Real divisor) {
      const auto inverse = static_cast<Real>(largest / 127.0);
      for (std::int64_t i = team.team_rank(); i < n; i += step) {
        target[i] = static_cast<T>(static_cast<float>(quantised(row[i], divisor) * inverse));
      }
    });
  }
};

}  // namespace katt::ternary_linear::impl
