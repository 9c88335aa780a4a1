#pragma once

#include "tile/rows/columns.hpp"

/// Softmax statistics of a row in one pass over memory.
namespace katt::tile {

/// max = max_j x_j and sum = Σ_j exp(x_j − max), so that log Σ exp x = max + log(sum). They stay
/// separate because their sum would round away the digits of small terms when |max| is large.
struct RowStatistics {
  float max = Kokkos::Experimental::finite_min_v<float>;
  float sum = 0.0F;
};

/// exp(x − max) without the cancellation that exp2(x·log2(e) − max·log2(e)) has for large x.
template <class V>
KOKKOS_FORCEINLINE_FUNCTION V exp_below(const V& x, float max) {
  return exp2(V((x - V(max)) * V(log2e)));
}

/// The same, with the accuracy of a result that is stored as a T.
template <class T, class V>
KOKKOS_FORCEINLINE_FUNCTION V exp_below_for(const V& x, float max) {
  if constexpr (std::is_same_v<T, float>) {
    return exp_below(x, max);
  } else {
    return exp2_of_16_bits(V((x - V(max)) * V(log2e)));
  }
}

/// The statistics of two parts of a row together.
KOKKOS_INLINE_FUNCTION RowStatistics merge(const RowStatistics& a, const RowStatistics& b) {
  const float largest = max(a.max, b.max);
  return {largest, a.sum * Kokkos::exp2((a.max - largest) * log2e) +
                       b.sum * Kokkos::exp2((b.max - largest) * log2e)};
}

/// Statistics of n elements, the same for all threads of the team: the online softmax (Milakov &
/// Gimelshein 2018, arXiv:1805.02867) by blocks of columns, small enough that the second look at a
/// block finds it in the first-level cache. A sum holds the terms of one block only, which keeps
/// its rounding error independent of the length of the row. A WideTeam's thread has the block, the
/// elements of one load, in its registers.
template <class Exec, class Team, class T>
KOKKOS_INLINE_FUNCTION RowStatistics row_statistics(const Team& team, const T* row,
                                                    std::int64_t n) {
  RowStatistics running;
  if constexpr (is_wide_v<Team>) {
    for_columns<Exec>(team, 0, n, [&]<class V>(std::int64_t c) {
      const V x = load<V>(row + c);
      const float next = max(running.max, reduce_max(x));
      running.sum =
          running.sum * Kokkos::exp2((running.max - next) * log2e) + reduce_sum(exp_below(x, next));
      running.max = next;
    });
  } else {
    constexpr std::int64_t block = 1024;
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const std::int64_t end = Kokkos::min(begin + block, n);
      RowMax<Exec> largest(running.max);
      for_columns<Exec>(team, begin, end,
                        [&]<class V>(std::int64_t c) { largest.add(load<V>(row + c)); });
      const float next = largest.mine();
      RowSum<Exec> sum;
      for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t c) {
        sum.add(exp_below(load<V>(row + c), next));
      });
      running.sum = running.sum * Kokkos::exp2((running.max - next) * log2e) + sum.mine();
      running.max = next;
    }
  }
  float largest = running.max;
  team.team_reduce(Kokkos::Max<float>(largest));
  float sum = running.sum * Kokkos::exp2((running.max - largest) * log2e);
  team.team_reduce(Kokkos::Sum<float>(sum));
  return {largest, sum};
}

}  // namespace katt::tile
