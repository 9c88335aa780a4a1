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
    for_packs_ahead(team, row, n, [&](const auto& x) {
      const float next = max(running.max, reduce_max(x));
      running.sum =
          running.sum * Kokkos::exp2((running.max - next) * log2e) + reduce_sum(exp_below(x, next));
      running.max = next;
    });
  } else {
    constexpr std::int64_t block = 1024;
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const std::int64_t end = Kokkos::min(begin + block, n);
      RowMax<Exec, column_slots> largest(running.max);
      for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t c, int slot) {
        largest.add(load<V>(row + c), slot);
      });
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

/// Exponentials of a row that fits, kept by a thread of a host, so that each is computed once.
template <class Exec>
class KeptExponentials {
 public:
  static constexpr std::int64_t most = 32768;  ///< elements: 128 KiB, for a second-level cache

  /// The statistics of row_statistics(), of n ≤ most elements.
  template <class Team, class T>
  RowStatistics keep(const Team& team, const T* row, std::int64_t n) {
    RowStatistics running;
    n_ = n;
    for (std::int64_t begin = 0; begin < n; begin += block) {
      const std::int64_t end = Kokkos::min(begin + block, n);
      RowMax<Exec, column_slots> largest(running.max);
      for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t c, int slot) {
        largest.add(load<V>(row + c), slot);
      });
      const float next = largest.mine();
      RowSum<Exec> sum;
      for_columns<Exec>(team, begin, end, [&]<class V>(std::int64_t c) {
        const V e = exp_below(load<V>(row + c), next);
        sum.add(e);
        store(values_ + c, e);
      });
      running.sum = running.sum * Kokkos::exp2((running.max - next) * log2e) + sum.mine();
      running.max = next;
      maxima_[begin / block] = next;
    }
    return running;
  }

  /// Calls f(column, exp(x − max) / sum) for vectors of columns.
  template <class Team, class F>
  void each(const Team& team, const RowStatistics& found, const F& f) const {
    for (std::int64_t begin = 0; begin < n_; begin += block) {
      const float factor = Kokkos::exp2((maxima_[begin / block] - found.max) * log2e) / found.sum;
      for_columns<Exec>(team, begin, Kokkos::min(begin + block, n_), [&]<class V>(std::int64_t c) {
        f(c, V(load<V>(values_ + c) * V(factor)));
      });
    }
  }

 private:
  static constexpr std::int64_t block = 1024;

  std::int64_t n_ = 0;
  float maxima_[most / block];  ///< below which the exponentials of a block are
  alignas(64) float values_[most];
};

}  // namespace katt::tile
