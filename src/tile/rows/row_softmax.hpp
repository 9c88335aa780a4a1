#pragma once

#include "tile/rows/row_pairs.hpp"

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

/// Sees nothing of the exponentials of a row: see block_statistics().
struct NoSink {
  KOKKOS_FORCEINLINE_FUNCTION void start(float /*max*/, float /*scale*/) {}
  template <class V, int N>
  KOKKOS_FORCEINLINE_FUNCTION void take(std::int64_t /*c*/, int /*slot*/, const V (&)[N]) {}
};

namespace impl {

/// Columns between two looks at the maximum of a row: the second look finds them in the first-level cache.
inline constexpr std::int64_t softmax_block = 1024;

/// Columns of the block that begins at column `begin` of n.
KOKKOS_FORCEINLINE_FUNCTION std::int64_t block_columns(std::int64_t begin, std::int64_t n) {
  return n - begin < softmax_block ? n - begin : softmax_block;
}

/// Asks for what lies a block behind N vectors at `source`.
template <class V, int N, class T>
KOKKOS_FORCEINLINE_FUNCTION void ask_ahead(const T* source) {
  constexpr int line = 64 / sizeof(T);
  if constexpr (N > 1) {  // not at the end of a row
    for (int k = 0; k < N * width_v<V>; k += line) prefetch(source + softmax_block + k);
  }
}

/// Statistics of the elements of a row that this thread of a team sees. For every block of columns:
/// sink.start(max, scale), with the largest value so far and the factor exp(max before − max) by which
/// earlier sums shrink, and sink.take(c, slot, e) for its e = exp(x − max), as exact as an R needs.
template <class R, class Exec, class Team, class T, class Sink>
KOKKOS_FORCEINLINE_FUNCTION RowStatistics block_statistics(const Team& team, const T* row,
                                                           std::int64_t n, Sink& sink) {
  RowStatistics running;
  for (std::int64_t begin = 0; begin < n; begin += softmax_block) {
    const T* x = row + begin;
    const std::int64_t count = block_columns(begin, n);
    RowMax<Exec, column_slots> largest(running.max);
    for_pairs<Exec>(team, count, [&]<int N, class V>(std::int64_t c, int slot) {
      V values[N];
      load_all(x + c, values);
      for (int k = 0; k < N; ++k) largest.add(values[k], slot + k);
    });
    const float next = largest.mine();
    const float scale = Kokkos::exp2((running.max - next) * log2e);
    sink.start(next, scale);
    RowSum<Exec, column_slots> sum;
    for_pairs<Exec>(team, count, [&]<int N, class V>(std::int64_t c, int slot) {
      V e[N];
      ask_ahead<V, N>(x + c);
      load_all(x + c, e);
      for (int k = 0; k < N; ++k) {
        e[k] = exp_below_for<R>(e[k], next);
        sum.add(e[k], slot + k);
      }
      sink.take(begin + c, slot, e);
    });
    running.sum = running.sum * scale + sum.mine();
    running.max = next;
  }
  return running;
}

}  // namespace impl

/// Statistics of n elements, the same for all threads of the team: the online softmax (Milakov &
/// Gimelshein 2018, arXiv:1805.02867) by blocks of columns. A sum holds the terms of one block only,
/// which keeps its rounding error independent of the length of the row. A WideTeam's thread has the
/// block, the elements of one load, in its registers.
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
    NoSink none;
    running = impl::block_statistics<float, Exec>(team, row, n, none);
  }
  float largest = running.max;
  team.team_reduce(Kokkos::Max<float>(largest));
  float sum = running.sum * Kokkos::exp2((running.max - largest) * log2e);
  team.team_reduce(Kokkos::Sum<float>(sum));
  return {largest, sum};
}

/// Most columns of a row whose exponentials a thread of a host keeps: 128 KiB, for a second-level cache.
inline constexpr std::int64_t most_kept = 32768;

/// The softmax p of a row on a thread of a host, for results of dtype T. Its exponentials are kept,
/// so that each is computed once, or, unless Kept, computed again.
template <class Exec, class T, bool Kept>
class RowProbabilities {
 public:
  /// Reads a row of n elements, at most most_kept of them if Kept; also Σ p · weights where there
  /// are weights.
  RowProbabilities(const T* row, std::int64_t n, const T* weights = nullptr) : row_(row), n_(n) {
    found_ = weights == nullptr ? read<false>(nullptr) : read<true>(weights);
  }

  /// Calls f.operator()<N, V>(c, p) for the N vectors, or the element, of p from column c on.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void each(const F& f) const {
    for (std::int64_t begin = 0; begin < n_; begin += impl::softmax_block) {
      const float factor =
          (Kept ? Kokkos::exp2((maxima_[begin / impl::softmax_block] - found_.max) * log2e)
                : 1.0F) /
          found_.sum;
      for_pairs<Exec>(SoloTeam{}, impl::block_columns(begin, n_),
                      [&]<int N, class V>(std::int64_t c, int /*slot*/) {
                        V p[N];
                        if constexpr (!Kept) load_all(row_ + begin + c, p);
                        for (int k = 0; k < N; ++k) {
                          if constexpr (Kept) p[k] = load<V>(kept_ + begin + c + k * width_v<V>);
                          else p[k] = exp_below_for<T>(p[k], found_.max);
                          p[k] = p[k] * V(factor);
                        }
                        f(begin + c, p);
                      });
    }
  }

  /// Σ p · weights.
  [[nodiscard]] float product() const { return product_; }

 private:
  /// Keeps exponentials, or sums their products with the weights.
  template <bool Weighted>
  struct Sink {
    RowProbabilities& row;
    const T* weights;
    int block = 0;
    float before = 0.0F;
    RowSum<Exec, column_slots> sum{};

    KOKKOS_FORCEINLINE_FUNCTION void start(float max, float scale) {
      if constexpr (Kept) row.maxima_[block++] = max;
      if constexpr (Weighted) {
        before = (before + sum.mine()) * scale;
        sum = {};
      }
    }
    template <class V, int N>
    KOKKOS_FORCEINLINE_FUNCTION void take(std::int64_t c, int slot, const V (&e)[N]) {
      V w[N];
      if constexpr (Weighted) {
        impl::ask_ahead<V, N>(weights + c);
        load_all(weights + c, w);
      }
      for (int k = 0; k < N; ++k) {
        if constexpr (Kept) store(row.kept_ + c + k * width_v<V>, e[k]);
        if constexpr (Weighted) sum.multiply_add(e[k], w[k], slot + k);
      }
    }
  };

  template <bool Weighted>
  RowStatistics read(const T* weights) {
    Sink<Weighted> sink{*this, weights};
    const RowStatistics found = impl::block_statistics<T, Exec>(SoloTeam{}, row_, n_, sink);
    if constexpr (Weighted) product_ = (sink.before + sink.sum.mine()) / found.sum;
    return found;
  }

  const T* row_;
  std::int64_t n_;
  RowStatistics found_;
  float product_ = 0.0F;
  /// Below which a block's exponentials are.
  float maxima_[Kept ? most_kept / impl::softmax_block : 1];
  alignas(64) float kept_[Kept ? most_kept : 1];  ///< in the order of load_all()
};

}  // namespace katt::tile
