#pragma once

#include <cstdint>
#include <type_traits>

#include "tile/bf16/bf16_panels.hpp"
#include "tile/engines/dots.hpp"
#include "tile/engines/in_register.hpp"
#include "tile/engines/row_blocks.hpp"
#include "tile/rows/elementwise.hpp"

/// The two products of RowEngine (tile/engines/row_engine.hpp) by dot products of bf16, on cores
/// that are fast at them: keys are multiplied without a conversion, and probabilities, rounded to
/// bf16, two keys at a time.
namespace katt::tile::row_dots {

#if defined(KATT_BF16_PANELS)

using bf16_panels::depth;  // elements of a vector
using bf16_panels::load_dwords;

/// A query row for score_keys(): vectors of head_dim, zeros behind it, those of a row `rows` vectors apart.
inline void pack_query(const bf16* source, int head_dim, int rows, float* out) {
  for (int d = 0; d < head_dim; d += depth) {
    _mm512_storeu_si512(out + d / 2 * rows, load_dwords(source + d, head_dim - d));
  }
}

/// out[j · R + r] are the lanes of the product of key j and query r, of pack_query()'s block of R
/// rows. Prefetches the next rows by ahead().
template <int R, class Vec, int Count>
KOKKOS_FORCEINLINE_FUNCTION void score_keys(const bf16* key, std::int64_t stride,
                                            row_blocks::RowsAhead& ahead, const float* q,
                                            int head_dim, Vec (&out)[Count]) {
  constexpr int keys = Count / R;
  __m512 sums[Count];
#pragma GCC unroll 16
  for (int i = 0; i < Count; ++i) sums[i] = _mm512_setzero_ps();
  const auto add = [&](int d, const auto& load) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j) ahead();
    __m512i query[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) query[r] = in_register(_mm512_loadu_si512(q + r * 16));
#pragma GCC unroll 4
    for (int j = 0; j < keys; ++j) {
      const __m512i k = load(key + j * stride + d);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sums[j * R + r] = add_dots(sums[j * R + r], query[r], k);
    }
    q += R * 16;
  };
  int d = 0;
  for (; d + depth <= head_dim; d += depth) {
    add(d, [](const bf16* from) { return _mm512_loadu_si512(from); });
  }
  if (d < head_dim) add(d, [&](const bf16* from) { return load_dwords(from, head_dim - d); });
#pragma GCC unroll 16
  for (int i = 0; i < Count; ++i) out[i] = Vec(sums[i]);
}

/// The probabilities of a row, in place, as pairs of bf16, zeros from `columns` ≤ 32 on.
inline void pair_probabilities(float* row, int columns) {
  const __m512 low = _mm512_maskz_loadu_ps(bf16_panels::first_lanes(columns), row);
  const __m512 high = _mm512_maskz_loadu_ps(bf16_panels::first_lanes(columns - 16), row + 16);
  _mm512_storeu_si512(row, round_two(low, high));
}

/// out[r][n] += Σ_j p(r, j) · v(j, 16 n + lane) over `keys` rows of values; a vector of P beside
/// each other row of `p`, as pair_probabilities() leaves them. With an odd ND the last vector has
/// `last` columns.
template <class Vec, int R, int ND>
KOKKOS_FORCEINLINE_FUNCTION void add_values(const bf16* value, std::int64_t stride,
                                            row_blocks::RowsAhead& ahead, int keys, const float* p,
                                            std::int64_t p_stride, int last, Vec (&out)[R][ND]) {
  __m512 sums[R][ND];
#pragma GCC unroll 24
  for (int i = 0; i < R * ND; ++i) sums[i / ND][i % ND] = static_cast<__m512>(out[i / ND][i % ND]);
  using Pair [[gnu::may_alias]] = std::int32_t;
  const auto* pairs = reinterpret_cast<const Pair*>(p);
  const auto load = [&](const bf16* from, int n) __attribute__((always_inline)) {
    if constexpr (ND % 2 == 0) return _mm512_loadu_si512(from + 16 * n);
    else return load_dwords(from + 16 * n, last);
  };
  const auto add = [&](bool is_pair) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int n = 0; n < ND; n += 2) ahead();
#pragma GCC unroll 4
    for (int n = 0; is_pair && n < ND; n += 2) ahead();
#pragma GCC unroll 4
    for (int n = 0; n < ND; n += 2) {
      const __m512i first = load(value, n);
      const __m512i second = is_pair ? load(value + stride, n) : _mm512_setzero_si512();
      const __m512i low = first_pairs(first, second);
      const __m512i high = n + 1 < ND ? last_pairs(first, second) : low;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        // In this order: GCC would load some ahead, and copy sums from register to register for it.
        __m512i broadcast;
        asm volatile("vpbroadcastd %1, %0" : "=v"(broadcast) : "m"(pairs[r * p_stride]));
        sums[r][n] = add_dots(sums[r][n], broadcast, low);
        if (n + 1 < ND) sums[r][n + 1] = add_dots(sums[r][n + 1], broadcast, high);
      }
    }
    ++pairs;
    value += 2 * stride;
  };
  for (int j = 0; j + 1 < keys; j += 2) add(true);
  if (keys % 2 != 0) add(false);
#pragma GCC unroll 24
  for (int i = 0; i < R * ND; ++i) out[i / ND][i % ND] = Vec(sums[i / ND][i % ND]);
}

#else

// Declarations for functions that are never called there.
template <class... Args>
void pack_query(Args&&...);
template <int R, class... Args>
void score_keys(Args&&...);
template <class... Args>
void pair_probabilities(Args&&...);
template <class... Args>
void add_values(Args&&...);

#endif

}  // namespace katt::tile::row_dots
