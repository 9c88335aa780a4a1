#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "tile/bf16/transpose.hpp"
#include "tile/engines/engine.hpp"
#include "tile/engines/in_register.hpp"
#include "tile/engines/row_blocks.hpp"
#include "tile/engines/row_dots.hpp"
#include "tile/engines/row_lanes.hpp"
#include "tile/engines/row_threads.hpp"
#include "tile/engines/teams.hpp"
#include "tile/engines/warp_rows.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/rows/pairs.hpp"
#include "tile/vec/vec.hpp"

namespace katt::tile {

/// The engine for few query rows and many keys, when reading K and V is the cost (see engine.hpp);
/// the number of rows is known at run time only.
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
/// Blocks are of `row_block` rows and then of as many as are left, so that K and V are widened once
/// for up to `row_block` query rows. A host takes two vectors of a row at a time: a line of 16-bit
/// elements. For bf16 they are the even and the odd elements, which one instruction widens; Q and O
/// lie in the same order. Cores that are fast at dot products of bf16 take these
/// (tile/engines/row_dots.hpp), and AVX-512 has another way for five rows and more
/// (tile/engines/row_lanes.hpp).
///
/// On a device a "vector" is a float and a thread takes a block; keys, and then values, are staged
/// in shared memory (tile/engines/warp_rows.hpp). A warp has a row's softmax, queries and results. `Wide`:
/// queries, keys and values are chunks (are_chunks()), of which a device loads 16 bytes at a time.
template <class Exec, class T, int TileKv, bool Wide = false>
class RowEngine {
 public:
  using Element = T;
  using Vec = VecOf<Exec>;
  using Team = TeamOf<Exec>;
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
    const auto q = static_cast<std::size_t>(query_rows(rows));
    const auto d = static_cast<std::size_t>(padded(head_dim));
    const std::size_t staged = on_host ? 0 : static_cast<std::size_t>(TileKv) * (d + 1);
    return sizeof(float) * ((q + r) * d + r * TileKv + 3 * r + staged);
  }

  /// True: with this many rows, keys are prefetched one tile ahead, not right before their use. A
  /// line then has time to arrive, but tiles of f32 leave it little room in the first-level cache.
  /// (Zen 4: bf16 alone.)
  KOKKOS_INLINE_FUNCTION static constexpr bool asks_far(int rows) {
    return is_zen5 ? on_host && rows > (sizeof(T) == 2 ? 4 : 7) : is_zen && by_dots && rows > 3;
  }

  KOKKOS_INLINE_FUNCTION RowEngine(const Team& team, float* scratch, int rows, int head_dim)
      : team_(team),
        rows_(rows),
        head_dim_(head_dim),
        row_(padded(head_dim)),
        threads_(team.team_rank(), team.team_size()) {
    q_ = scratch;
    o_ = q_ + static_cast<std::ptrdiff_t>(query_rows(rows)) * row_;
    s_ = o_ + static_cast<std::ptrdiff_t>(rows) * row_;
    max_ = s_ + static_cast<std::ptrdiff_t>(rows) * TileKv;
    sum_ = max_ + rows;
    rescale_ = sum_ + rows;
    staged_ = rescale_ + rows;
  }

  /// Widens the queries, and clears O and the statistics. row_pointer(r) is the first element of
  /// query row r.
  template <class RowPointer>
  KOKKOS_INLINE_FUNCTION void load_queries(const RowPointer& row_pointer) {
    threads_.for_each_row(rows_, [&](int r) {
      const T* source = row_pointer(r);
      float* q = query_row(r);
      float* o = o_ + static_cast<std::ptrdiff_t>(r) * row_;
      const int step = rows_of_block(r);
      if constexpr (Wide) {
        widen_query(source, head_dim_, threads_.place(), q, step, o);
      } else {
        bool packed = false;
        if constexpr (by_lanes) {
          packed = row_lanes::takes<T>(step, head_dim_);
          if (packed) row_lanes::pack_query(source, head_dim_, r % row_block, query_block(r));
        }
        if constexpr (by_dots) {
          if (!packed) row_dots::pack_query(source, head_dim_, step, q);
          packed = true;
        }
        threads_.for_each_part(head_dim_, [&](int d, auto part) {
          row_blocks::for_each_vector_of(part, [&]<int N>() {
            if (!packed) store(q + (d + N * lanes) * step, load_part<N>(source + d, part));
            store(o + d + N * lanes, Vec(0.0F));
          });
        });
      }
      max_[r] = lowest_score;
      sum_[r] = 0.0F;
    });
    team_.team_barrier();
  }

  /// S = Q·Kᵀ for these keys. `next` are the rows to read after them: a host prefetches them
  /// meanwhile, so that reading and computing overlap.
  KOKKOS_INLINE_FUNCTION void scores(const Rows<T>& keys, const Rows<T>& next) {
    columns_ = keys.count;
    Ahead ahead(next, head_dim_);
    if constexpr (on_host) {
      score_rows(keys, ahead);
    } else {
      score_rows(stage(keys), ahead);
    }
    team_.team_barrier();
  }

  /// Replaces every score by f(score, place), f taking and giving a Vec; numbers(r) are those of
  /// query row r.
  template <class Numbers, class F>
  KOKKOS_INLINE_FUNCTION void transform(const Numbers& numbers, const F& f) {
    const int vectors = (columns_ + lanes - 1) / lanes;
    threads_.for_each_item(rows_ * vectors, [&](int item) {
      const int first = item % vectors * lanes;
      float* s = score_row(item / vectors) + first;
      auto place = place_of_columns<Vec>(numbers(item / vectors));
      place.column = place.column + Vec(static_cast<float>(first));
      store(s, Vec(f(load<Vec>(s), place)));
    });
    team_.team_barrier();
  }

  /// Calls f(part) for all scores of the columns of the last scores(), on a host; f may change them.
  template <class F>
  void for_each_part(const F& f) {
    static_assert(TileKv % 16 == 0);
    f(ScorePart{s_, 0, rows_, rows_, (columns_ + 15) / 16 * 16, true, TileKv});
  }

  using ScoreRow = row_blocks::ScoreRow;

  /// Calls f(row, ScoreRow) for every query row; f may change the scores.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_row(const F& f) {
    threads_.for_each_item(rows_, [&](int r) { f(r, ScoreRow{score_row(r)}); });
    team_.team_barrier();
  }

  /// Scores outside of the columns range(row) of their query row become −inf.
  template <class F>
  KOKKOS_INLINE_FUNCTION void clip(const F& range) {
    threads_.for_each_row(rows_, [&](int r) {
      const ColumnRange visible = range(r);
      float* s = score_row(r);
      for (int j = threads_.place(); j < columns_; j += RowThreads<Exec>::of_row) {
        s[j] = keep_between(s[j], static_cast<float>(j), visible.begin, visible.end);
      }
    });
    team_.team_barrier();
  }

  /// Running maximum, probabilities and sum, over the columns of the last scores(), which are in
  /// base 2 when multiplied with `factor` > 0.
  KOKKOS_INLINE_FUNCTION void softmax(float factor) {
    if constexpr (!by_lanes) {
      threads_.for_each_row(rows_, [&](int r) { softmax_of_row(r, factor); });
      team_.team_barrier();
    } else {
      row_blocks::for_each<row_block>(rows_, [&]<int R>(int first, int blocks) {
        for (int r = first; r < first + blocks * R; r += R) {
          if constexpr (R > 2) {
            row_lanes::softmax<R, by_dots>(score_row(r), TileKv, columns_, factor, statistics(r));
          } else {
            for (int i = r; i < r + R; ++i) softmax_of_row(i, factor);
          }
        }
      });
    }
  }

  /// O = O·α + P·V for the value rows that belong to the last scores(). `next` as in scores().
  KOKKOS_INLINE_FUNCTION void accumulate(const Rows<T>& values, const Rows<T>& next) {
    Ahead ahead(next, head_dim_);
    if constexpr (on_host) {
      value_rows(values, ahead);
    } else {
      value_rows(stage(values), ahead);
    }
    team_.team_barrier();
  }

  /// Calls f(row, sum, max, write) for every query row: the sum of its probabilities (0 where it
  /// saw no visible key), its largest score, and write(target, factor), which stores factor ·
  /// O(row). On a device all threads of a warp call it, and each stores its part.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_output(const F& f) {
    threads_.for_each_row(rows_, [&](int r) {
      const float* o = o_ + static_cast<std::ptrdiff_t>(r) * row_;
      f(r, sum_[r], max_[r], [&](auto* target, float factor) {
        threads_.for_each_part(head_dim_, [&](int d, auto part) {
          const Vec first = load<Vec>(o + d) * Vec(factor);
          if constexpr (row_blocks::width_of<decltype(part)> == 1) {
            store(target + d, first, part);
          } else {
            const Vec second = load<Vec>(o + d + lanes) * Vec(factor);
            if constexpr (interleaved) {
              store_pairs<false>(target + d, first, second);
            } else {
              store(target + d, first);
              store(target + d + lanes, second);
            }
          }
        });
      });
    });
  }

 private:
  // Register blocks of a host with 32 registers or with 16: as many accumulators as a vector has
  // lanes for the scores, so that their sums fill one vector.
  static constexpr int row_block = lanes == 16 ? 8 : on_host ? 4 : 2;
  static constexpr int accumulators = lanes > 1 ? lanes : row_block;
  static constexpr int value_accumulators = lanes == 16 ? 24 : 8;
  static constexpr int line = 64 / static_cast<int>(sizeof(T));  ///< elements of a cache line
  /// True: dot products multiply bf16, with Q and P in bf16.
  static constexpr bool by_dots = has_fast_dots && std::is_same_v<T, bf16> && TileKv == 32;
  /// True: a vector may hold elements of each of eight rows (tile/engines/row_lanes.hpp).
  static constexpr bool by_lanes = row_lanes::rows == row_block && on_host && TileKv == 32;
  /// True: two vectors are the even and the odd elements of their range.
  static constexpr bool interleaved = std::is_same_v<T, bf16> && lanes > 1 && !by_dots;

  using Ahead = row_blocks::RowsAhead;

  /// Calls f(d, part) for the elements of a row of head_dim, on a host two vectors at a time.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_part(const F& f) const {
    row_blocks::for_each_part<lanes, on_host>(head_dim_, f);
  }

  /// Vector N of a part.
  template <int N, class K, class Part>
  KOKKOS_FORCEINLINE_FUNCTION static Vec load_part(const K* source, Part part) {
    return row_blocks::load_part<Vec, interleaved, N>(source, part);
  }

  KOKKOS_FORCEINLINE_FUNCTION RunningSoftmax statistics(int r) const {
    return {max_ + r, sum_ + r, rescale_ + r};
  }
  KOKKOS_FORCEINLINE_FUNCTION void softmax_of_row(int r, float factor) const {
    if constexpr (on_host) {
      softmax_of_vectors<Vec>(score_row(r), columns_, factor, statistics(r));
      if constexpr (by_dots) row_dots::pair_probabilities(score_row(r), columns_);
    } else {
      softmax_of_warp(score_row(r), columns_, threads_.place(), factor, statistics(r));
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION float* score_row(int r) const {
    return s_ + static_cast<std::ptrdiff_t>(r) * TileKv;
  }

  /// Rows widened in shared memory, an odd number of floats apart: threads that read the same element
  /// of different keys meet different banks.
  KOKKOS_INLINE_FUNCTION Rows<float> stage(const Rows<T>& source) const {
    const int stride = row_ + 1;
    widen_rows<Wide>(source, head_dim_, staged_, stride, threads_.rank(), threads_.size());
    team_.team_barrier();
    return {staged_, stride, source.count};
  }
  /// Rows of the block that row r belongs to.
  KOKKOS_FORCEINLINE_FUNCTION int rows_of_block(int r) const {
    const int left = rows_ - r / row_block * row_block;
    return left < row_block ? left : row_block;
  }
  /// Q as the scores read it: (block of rows, vector of head_dim, row of the block, lane), so that
  /// one pointer reaches all rows of a block.
  KOKKOS_FORCEINLINE_FUNCTION float* query_row(int r) const {
    return query_block(r) + r % row_block * lanes;
  }
  KOKKOS_FORCEINLINE_FUNCTION float* query_block(int r) const {
    return q_ + static_cast<std::ptrdiff_t>(r / row_block * row_block) * row_;
  }
  /// Rows that Q has room for.
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int query_rows(int rows) {
    return by_lanes ? (rows + row_block - 1) / row_block * row_block : rows;
  }

  template <class K>
  KOKKOS_FORCEINLINE_FUNCTION void score_rows(const Rows<K>& keys, Ahead& ahead) const {
    row_blocks::for_each<row_block>(rows_, [&]<int R>(int first, int blocks) {
      if constexpr (by_lanes && row_lanes::multiplies<T>) {
        if (row_lanes::takes<T>(R, head_dim_)) {
          for (int r = first; r < first + blocks * R; r += R) {
            row_lanes::scores<R>(keys, ahead, head_dim_, query_block(r), score_row(r), TileKv);
          }
          return;
        }
      }
      constexpr int fitting = static_cast<int>(std::bit_floor(accumulators / R + 0U));
      constexpr int key_block = Kokkos::max(fitting, 1);
      const int whole = columns_ / key_block;
      const int rest = whole * key_block;
      threads_.for_each_pair(blocks, whole, [&](int block, int item) {
        score_block<R, key_block>(keys, ahead, first + block * R, item * key_block);
      });
      threads_.for_each_pair(blocks, columns_ - rest, [&](int block, int item) {
        score_block<R, 1>(keys, ahead, first + block * R, rest + item);
      });
    });
  }

  /// The keys of a block a few at a time, whose pointers fit a host's registers.
  template <int R, int Keys, class K>
  KOKKOS_FORCEINLINE_FUNCTION void score_block(const Rows<K>& keys, Ahead& ahead, int first_row,
                                               int first_key) const {
    constexpr int few = Kokkos::min(Keys, 4);
    const float* q = query_row(first_row);
    Ahead next = ahead;  // in registers: each call waits for what the one before has stored
    Vec acc[Keys * R];
#pragma GCC unroll 4
    for (int j = 0; j < Keys; j += few) {
      Vec sums[few * R];
      score_keys<R>(keys.data + (first_key + j) * keys.stride, keys.stride, next, q, sums);
#pragma GCC unroll 16
      for (int i = 0; i < few * R; ++i) acc[j * R + i] = sums[i];
    }
    ahead = next;
    float sums[Keys * R];
    lane_sums(acc, sums);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* s = score_row(first_row + r) + first_key;
      for (int j = 0; j < Keys; ++j) s[j] = sums[j * R + r];
    }
  }

  /// sums[j · R + r], over the lanes, is the product of key j and query r.
  template <int R, class K, int Count>
  KOKKOS_FORCEINLINE_FUNCTION void score_keys(const K* key, std::int64_t stride, Ahead& ahead,
                                              const float* q, Vec (&sums)[Count]) const {
    constexpr int keys = Count / R;
    if constexpr (by_dots) {
      return row_dots::score_keys<R>(key, stride, ahead, q, head_dim_, sums);
    }
#pragma GCC unroll 16
    for (int i = 0; i < Count; ++i) sums[i] = Vec(0.0F);
    for_each_part([&](int d, auto part) {
      constexpr int width = row_blocks::width_of<decltype(part)>;
#pragma GCC unroll 4
      for (int j = 0; j < keys; ++j) {
        for (int c = 0; c < width * lanes; c += line) {
          if ((d + c) % line == 0) ahead();
        }
      }
      row_blocks::for_each_vector_of(part, [&]<int N>() {
        Vec query[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          query[r] = load<Vec>(q + (d + N * lanes) * R + r * lanes);
          if constexpr (lanes == 8 && keys > 1) query[r] = in_register(query[r]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < keys; ++j) {
          const Vec k = load_part<N>(key + j * stride + d, part);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sums[j * R + r] = fma(query[r], k, sums[j * R + r]);
        }
      });
    });
  }

  template <class K>
  KOKKOS_FORCEINLINE_FUNCTION void value_rows(const Rows<K>& values, Ahead& ahead) const {
    row_blocks::for_each<row_block>(rows_, [&]<int R>(int first, int blocks) {
      constexpr int fitting = static_cast<int>(std::bit_floor(value_accumulators / R + 0U));
      constexpr int widest = on_host ? Kokkos::min(fitting, 8) : 1;  // a device's threads are lanes
      value_columns<R, widest>(values, ahead, first, blocks, 0);
    });
  }

  /// Column blocks of ND vectors from `begin` on, then of ND / 2 … and what is left over.
  template <int R, int ND, class K>
  KOKKOS_FORCEINLINE_FUNCTION void value_columns(const Rows<K>& values, Ahead& ahead, int first,
                                                 int blocks, int begin) const {
    using Part = std::conditional_t<ND % 2 == 0, row_blocks::PairOfVectors, WholeVector>;
    const int wide = (head_dim_ - begin) / (ND * lanes);
    threads_.for_each_pair(blocks, wide, [&](int block, int item) {
      value_block<R, ND>(values, ahead, first + block * R, begin + item * ND * lanes, Part{});
    });
    begin += wide * ND * lanes;
    if constexpr (ND > 1) {
      value_columns<R, ND / 2>(values, ahead, first, blocks, begin);
    } else if (begin < head_dim_) {
      const PartialVector rest{head_dim_ - begin};
      threads_.for_each_item(blocks, [&](int block) {
        value_block<R, 1>(values, ahead, first + block * R, begin, rest);
      });
    }
  }

  template <int R, int ND, class K, class Part>
  KOKKOS_FORCEINLINE_FUNCTION void value_block(const Rows<K>& values, Ahead& ahead, int first_row,
                                               int first_dim, Part part) const {
    constexpr int width = row_blocks::width_of<Part>;
    float* o = o_ + static_cast<std::ptrdiff_t>(first_row) * row_ + first_dim;
    const float* p = score_row(first_row);
    const K* value = values.data + first_dim;
    Ahead next = ahead;
    Vec acc[R][ND];
#pragma GCC unroll 24
    for (int i = 0; i < R * ND; ++i) {
      acc[i / ND][i % ND] =
          load<Vec>(o + i / ND * row_ + i % ND * lanes) * Vec(rescale_[first_row + i / ND]);
    }
    if constexpr (by_dots) {
      row_dots::add_values(value, values.stride, next, columns_, p, TileKv,
                           Kokkos::min(head_dim_ - first_dim, lanes), acc);
    }
    for (int j = 0; !by_dots && j < columns_; ++j) {
      for (int c = 0; c < ND * lanes; c += line) {
        if ((j * ND * lanes + c) % line == 0) next();
      }
#pragma GCC unroll 4
      for (int n = 0; n < ND; n += width) {
        Vec v[width];
        row_blocks::for_each_vector_of(
            part, [&]<int N>() { v[N] = load_part<N>(value + n * lanes, part); });
#pragma GCC unroll 16
        for (int i = 0; i < R * width; ++i) {
          const Vec broadcast(p[i / width * TileKv + j]);
          Vec& sum = acc[i / width][n + i % width];
          sum = fma(broadcast, v[i % width], sum);
        }
      }
      value += values.stride;
    }
    ahead = next;
#pragma GCC unroll 24
    for (int i = 0; i < R * ND; ++i) {
      store(o + i / ND * row_ + i % ND * lanes, acc[i / ND][i % ND]);
    }
  }

  const Team& team_;
  float* q_;        ///< rows × padded(head_dim), see query_row()
  float* o_;        ///< rows × padded(head_dim)
  float* s_;        ///< rows × tile_kv: scores, then probabilities
  float* max_;      ///< rows
  float* sum_;      ///< rows
  float* rescale_;  ///< rows: 2^(factor · (m − m′)) of the last softmax()
  float* staged_;   ///< device: tile_kv × (padded(head_dim) + 1)
  int rows_;
  int head_dim_;
  int row_;
  int columns_ = 0;
  RowThreads<Exec> threads_;
};

}  // namespace katt::tile
