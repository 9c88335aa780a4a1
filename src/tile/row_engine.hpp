#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/backend.hpp"
#include "tile/elementwise.hpp"
#include "tile/engine.hpp"
#include "tile/transpose.hpp"
#include "tile/vec.hpp"

namespace katt::tile {

/// The engine for few query rows and many keys, where reading K and V is the cost: the interface of
/// a TileEngine, with a number of rows that is known at run time only.
///
/// SimdEngine puts 16 queries into a vector; with four rows it would leave twelve lanes empty and
/// widen every key into scratch first. Here the scores lie as (rows × keys) and a vector is 16
/// elements of head_dim, so that K and V go from memory through registers once for a block of rows:
///
///   scores      for keys in blocks of K, rows in blocks of R, R·K accumulators:
///                 for d: acc[R][K] += q[r][d] · k[key][d];   then sums over the lanes
///   accumulate  for head_dim in blocks of ND vectors, rows in blocks of R:
///                 for j: acc[R][ND] += p[r][j] · v[j][d]
///
/// On a device a "vector" is a float and a thread takes a block; keys are staged in shared memory,
/// from which threads read whole rows.
template <class Exec, class T, int TileKv>
class RowEngine {
 public:
  using Element = T;
  using Vec = VecOf<Exec>;
  using Team = typename Kokkos::TeamPolicy<Exec>::member_type;
  static constexpr int tile_kv = TileKv;
  static constexpr int lanes = lanes_v<Exec>;
  static constexpr bool on_host = is_host_v<Exec>;
  static_assert(TileKv % lanes == 0);

  /// head_dim padded to whole vectors: the row length of Q and O.
  KOKKOS_INLINE_FUNCTION static constexpr int padded(int head_dim) {
    return (head_dim + lanes - 1) / lanes * lanes;
  }

  KOKKOS_INLINE_FUNCTION static constexpr std::size_t scratch_bytes(int rows, int head_dim) {
    const auto r = static_cast<std::size_t>(rows);
    const auto d = static_cast<std::size_t>(padded(head_dim));
    const std::size_t staged = on_host ? 0 : static_cast<std::size_t>(TileKv) * (d + 1);
    return sizeof(float) * (2 * r * d + r * TileKv + 3 * r + staged);
  }

  KOKKOS_INLINE_FUNCTION RowEngine(const Team& team, float* scratch, int rows, int head_dim)
      : team_(team),
        rows_(rows),
        head_dim_(head_dim),
        row_(padded(head_dim)),
        rank_(team.team_rank()),
        size_(team.team_size()) {
    q_ = scratch;
    o_ = q_ + static_cast<std::ptrdiff_t>(rows) * row_;
    s_ = o_ + static_cast<std::ptrdiff_t>(rows) * row_;
    max_ = s_ + static_cast<std::ptrdiff_t>(rows) * TileKv;
    sum_ = max_ + rows;
    rescale_ = sum_ + rows;
    staged_ = rescale_ + rows;
  }

  /// Widens the queries, times `scale`, and clears O and the statistics. row_pointer(r) is the
  /// first element of query row r.
  template <class RowPointer>
  KOKKOS_INLINE_FUNCTION void load_queries(float scale, const RowPointer& row_pointer) {
    for_each_item(rows_, [&](int r) {
      const T* source = row_pointer(r);
      const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(r) * row_;
      for_each_part([&](int d, auto part) {
        store(q_ + row + d, Vec(load<Vec>(source + d, part) * Vec(scale)));
        store(o_ + row + d, Vec(0.0F));
      });
      max_[r] = lowest;
      sum_[r] = 0.0F;
    });
    team_.team_barrier();
  }

  /// S = Q·Kᵀ for these keys. `next` are the rows that will be read after them: a host asks memory
  /// for them meanwhile, so that reading and computing overlap.
  KOKKOS_INLINE_FUNCTION void scores(const Rows<T>& keys, const Rows<T>& next) {
    columns_ = keys.count;
    if constexpr (on_host) {
      score_rows<row_block>(keys, next, 0);
    } else {
      score_rows<row_block>(stage(keys), next, 0);
    }
    team_.team_barrier();
  }

  /// Replaces every score by f(score), f taking and giving a Vec.
  template <class F>
  KOKKOS_INLINE_FUNCTION void transform(const F& f) {
    const int vectors = (columns_ + lanes - 1) / lanes;
    for_each_item(rows_ * vectors, [&](int item) {
      float* s = score_row(item / vectors) + item % vectors * lanes;
      store(s, Vec(f(load<Vec>(s))));
    });
    team_.team_barrier();
  }

  /// Scores of one query row: score(j) for the columns of the last scores().
  struct ScoreRow {
    float* first;
    KOKKOS_INLINE_FUNCTION float& operator()(int column) const { return first[column]; }
  };

  /// Calls f(row, ScoreRow) for every query row; f may change the scores.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_row(const F& f) {
    for_each_item(rows_, [&](int r) { f(r, ScoreRow{score_row(r)}); });
    team_.team_barrier();
  }

  /// Scores outside of the columns range(row) of their query row become −inf.
  template <class F>
  KOKKOS_INLINE_FUNCTION void clip(const F& range) {
    for_each_row([&](int r, const ScoreRow& score) {
      const ColumnRange visible = range(r);
      for (int j = 0; j < columns_; ++j) {
        score(j) = keep_between(score(j), static_cast<float>(j), visible.begin, visible.end);
      }
    });
  }

  /// Running maximum, probabilities and sum, over the columns of the last scores().
  KOKKOS_INLINE_FUNCTION void softmax() {
    for_each_item(rows_, [&](int r) {
      float* s = score_row(r);
      int end = columns_;
      for (; end % lanes != 0; ++end) s[end] = -Kokkos::Experimental::infinity_v<float>;
      Vec largest(max_[r]);
      for (int j = 0; j < end; j += lanes) largest = max(largest, load<Vec>(s + j));
      const float new_max = reduce_max(largest);
      Vec sum(0.0F);
      for (int j = 0; j < end; j += lanes) {
        const Vec p = exp2(Vec(load<Vec>(s + j) - Vec(new_max)));
        store(s + j, p);
        sum = sum + p;
      }
      rescale_[r] = Kokkos::exp2(max_[r] - new_max);
      sum_[r] = sum_[r] * rescale_[r] + reduce_sum(sum);
      max_[r] = new_max;
    });
    team_.team_barrier();
  }

  /// O = O·α + P·V for the value rows that belong to the last scores(). `next` as in scores().
  KOKKOS_INLINE_FUNCTION void accumulate(const Rows<T>& values, const Rows<T>& next) {
    value_rows<row_block>(values, next, 0);
    team_.team_barrier();
  }

  /// Calls f(row, sum, max, write) for every query row: the sum of its probabilities (0 where it
  /// saw no visible key), its maximum in base 2, and write(target, factor), which stores factor ·
  /// O(row).
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_output(const F& f) {
    for_each_item(rows_, [&](int r) {
      const float* o = o_ + static_cast<std::ptrdiff_t>(r) * row_;
      f(r, sum_[r], max_[r], [&](auto* target, float factor) {
        for_each_part([&](int d, auto part) {
          store(target + d, Vec(load<Vec>(o + d) * Vec(factor)), part);
        });
      });
    });
  }

 private:
  // Register blocks: as many accumulators as a vector has lanes, so that their sums fill one
  // vector.
  static constexpr int row_block = on_host ? 4 : 2;
  static constexpr int accumulators = lanes > 1 ? lanes : row_block;
  static constexpr int value_accumulators = lanes == 16 ? 16 : 8;
  static constexpr int line = 64 / static_cast<int>(sizeof(T));  ///< elements of a cache line

  /// Below every finite score, and finite: 2^(−inf − lowest) is 0 and 2^(lowest − lowest) is 1, so
  /// that rows without a visible key need no case of their own.
  static constexpr float lowest = -0x1p126F;

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_item(int count, const F& f) const {
    for (int item = rank_; item < count; item += size_) f(item);
  }

  /// Calls f(d, lanes) for the vectors of a row of head_dim elements.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_part(const F& f) const {
    const int whole = head_dim_ / lanes * lanes;
    for (int d = 0; d < whole; d += lanes) f(d, WholeVector{});
    if (whole < head_dim_) f(whole, PartialVector{head_dim_ - whole});
  }

  KOKKOS_FORCEINLINE_FUNCTION float* score_row(int r) const {
    return s_ + static_cast<std::ptrdiff_t>(r) * TileKv;
  }

  /// The keys widened in shared memory, rows an odd number of floats apart: threads that read the
  /// same element of different keys meet different banks.
  KOKKOS_INLINE_FUNCTION Rows<float> stage(const Rows<T>& source) const {
    const int stride = row_ + 1;
    for_each_item(source.count * head_dim_, [&](int i) {
      const int r = i / head_dim_;
      const int d = i % head_dim_;
      staged_[r * stride + d] = static_cast<float>(source.data[r * source.stride + d]);
    });
    team_.team_barrier();
    return {staged_, stride, source.count};
  }

  /// Row blocks of R from `first` on, then of R / 2 …
  template <int R, class K>
  KOKKOS_FORCEINLINE_FUNCTION void score_rows(const Rows<K>& keys, const Rows<T>& next,
                                              int first) const {
    constexpr int key_block = accumulators / R > 0 ? accumulators / R : 1;
    const int blocks = (rows_ - first) / R;
    const int whole = columns_ / key_block;
    for_each_item(whole * blocks, [&](int item) {
      score_block<R, key_block>(keys, next, first + item % blocks * R, item / blocks * key_block);
    });
    const int rest = whole * key_block;
    for_each_item((columns_ - rest) * blocks, [&](int item) {
      score_block<R, 1>(keys, next, first + item % blocks * R, rest + item / blocks);
    });
    if constexpr (R > 1) score_rows<R / 2>(keys, next, first + blocks * R);
  }

  template <int R, int Keys, class K>
  KOKKOS_FORCEINLINE_FUNCTION void score_block(const Rows<K>& keys, const Rows<T>& next,
                                               int first_row, int first_key) const {
    const float* q = q_ + static_cast<std::ptrdiff_t>(first_row) * row_;
    const K* key = keys.data + first_key * keys.stride;
    Vec acc[R * Keys];
#pragma GCC unroll 16
    for (int i = 0; i < R * Keys; ++i) acc[i] = Vec(0.0F);
    const T* ahead = next.data + first_key * next.stride;
    const auto step = [&](int d, auto part) {
#pragma GCC unroll 16
      for (int j = 0; j < Keys; ++j) prefetch(ahead + j * next.stride + d);
      Vec query[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) query[r] = load<Vec>(q + r * row_ + d);
#pragma GCC unroll 16
      for (int j = 0; j < Keys; ++j) {
        const Vec k = load<Vec>(key + j * keys.stride + d, part);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[r * Keys + j] = fma(query[r], k, acc[r * Keys + j]);
      }
    };
    for_each_part(step);
    float sums[R * Keys];
    lane_sums(acc, sums);
    for (int r = 0; r < R; ++r) {
      float* s = score_row(first_row + r) + first_key;
      for (int j = 0; j < Keys; ++j) s[j] = sums[r * Keys + j];
    }
  }

  template <int R>
  KOKKOS_FORCEINLINE_FUNCTION void value_rows(const Rows<T>& values, const Rows<T>& next,
                                              int first) const {
    const int blocks = (rows_ - first) / R;
    constexpr int widest = value_accumulators / R < 8 ? value_accumulators / R : 8;
    value_columns<R, widest>(values, next, first, blocks, 0);
    if (const int rest = head_dim_ % lanes; rest > 0) {
      for_each_item(blocks, [&](int item) {
        value_block<R, 1>(values, next, first + item * R, head_dim_ - rest, PartialVector{rest});
      });
    }
    if constexpr (R > 1) value_rows<R / 2>(values, next, first + blocks * R);
  }

  /// Column blocks of ND vectors from `begin` on, then of ND / 2 …
  template <int R, int ND>
  KOKKOS_FORCEINLINE_FUNCTION void value_columns(const Rows<T>& values, const Rows<T>& next,
                                                 int first, int blocks, int begin) const {
    constexpr int width = on_host ? ND : 1;  // on a device neighbouring threads take neighbours
    const int wide = (head_dim_ - begin) / (width * lanes);
    for_each_item(wide * blocks, [&](int item) {
      value_block<R, width>(values, next, first + item / wide * R,
                            begin + item % wide * width * lanes, WholeVector{});
    });
    if constexpr (width > 1) {
      value_columns<R, width / 2>(values, next, first, blocks, begin + wide * width * lanes);
    }
  }

  template <int R, int ND, class Part>
  KOKKOS_FORCEINLINE_FUNCTION void value_block(const Rows<T>& values, const Rows<T>& next,
                                               int first_row, int first_dim, Part part) const {
    float* o = o_ + static_cast<std::ptrdiff_t>(first_row) * row_ + first_dim;
    const float* p = score_row(first_row);
    const T* value = values.data + first_dim;
    Vec acc[R][ND];
    for (int r = 0; r < R; ++r) {
      const Vec rescale(rescale_[first_row + r]);
      for (int n = 0; n < ND; ++n) acc[r][n] = load<Vec>(o + r * row_ + n * lanes) * rescale;
    }
    const T* ahead = next.data + first_dim;
    for (int j = 0; j < columns_; ++j) {
      for (int c = 0; c < ND * lanes; c += line) prefetch(ahead + c);
      ahead += next.stride;
      Vec row[ND];
      for (int n = 0; n < ND; ++n) row[n] = load<Vec>(value + n * lanes, part);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const Vec broadcast(p[r * TileKv + j]);
        for (int n = 0; n < ND; ++n) acc[r][n] = fma(broadcast, row[n], acc[r][n]);
      }
      value += values.stride;
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < ND; ++n) store(o + r * row_ + n * lanes, acc[r][n]);
    }
  }

  const Team& team_;
  float* q_;        ///< rows × padded(head_dim)
  float* o_;        ///< rows × padded(head_dim)
  float* s_;        ///< rows × tile_kv: scores, then probabilities
  float* max_;      ///< rows
  float* sum_;      ///< rows
  float* rescale_;  ///< rows: 2^(m − m′) of the last softmax()
  float* staged_;   ///< device: tile_kv × (padded(head_dim) + 1)
  int rows_;
  int head_dim_;
  int row_;
  int columns_ = 0;
  int rank_;
  int size_;
};

}  // namespace katt::tile
