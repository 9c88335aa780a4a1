#pragma once

#include <cstdint>

#include "tile/rows/columns.hpp"
#include "tile/rows/pairs.hpp"

/// Loops and sums over the columns of a row, two vectors at a time in the order of load_all().
namespace katt::tile {

/// for_column_pairs() with one body, f.operator()<N, V>(c, slot): N vectors V, or an element, whose
/// slots are slot … slot + N − 1 of column_slots.
template <class Exec, class Team, class F>
KOKKOS_FORCEINLINE_FUNCTION void for_pairs(const Team& team, std::int64_t n, const F& f) {
  for_column_pairs<Exec>(
      team, n,
      [&](std::int64_t c, int slot) { f.template operator()<2, VecOf<Exec>>(c, 2 * slot); },
      [&]<class V = VecOf<Exec>>(std::int64_t c, int slot) {
        f.template operator()<1, V>(c, slot);
      },
      [&](std::int64_t c) { f.template operator()<1, float>(c, 0); });
}

/// Σ_c terms(c) of a row: f(c, terms) sets the N terms of the vectors, or of the element, at column c.
template <class Exec, int N, class Team, class F>
KOKKOS_FORCEINLINE_FUNCTION RowSums<N> pair_sums(const Team& team, std::int64_t n, const F& f) {
  RowSum<Exec, column_slots> sums[N];
  for_pairs<Exec>(team, n, [&]<int M, class V>(std::int64_t c, int slot) {
    V terms[N][M];
    f(c, terms);
    for (int k = 0; k < N; ++k) {
      for (int m = 0; m < M; ++m) sums[k].add(terms[k][m], slot + m);
    }
  });
  RowSums<N> totals;
  for (int k = 0; k < N; ++k) totals.of[k] = sums[k].total(team);
  return totals;
}

}  // namespace katt::tile
