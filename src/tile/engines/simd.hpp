#pragma once

#include <cstddef>
#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "tile/engines/engine.hpp"
#include "tile/engines/teams.hpp"
#include "tile/vec/vec.hpp"

namespace katt::tile {

/// Scratch of a SimdEngine whose packed queries take `query` floats each, and whose rows of O, K and
/// V are `row` floats apart.
KOKKOS_INLINE_FUNCTION constexpr std::size_t simd_scratch_bytes(std::size_t tile_q,
                                                                std::size_t tile_kv,
                                                                std::size_t query,
                                                                std::size_t row) {
  const std::size_t q = query * tile_q;
  const std::size_t s = tile_kv * tile_q;
  const std::size_t o = tile_q * row;
  const std::size_t staged = tile_kv * row;
  return sizeof(float) * (q + s + o + staged + 3 * tile_q);
}

/// The same on a device. Threads of a warp have a group of queries each, and a row: where groups
/// began in one bank of shared memory, or rows, the threads would wait for each other.
KOKKOS_INLINE_FUNCTION constexpr std::size_t device_simd_scratch_bytes(std::size_t tile_q,
                                                                       std::size_t tile_kv,
                                                                       std::size_t head_dim) {
  return simd_scratch_bytes(tile_q, tile_kv, head_dim + 1, head_dim | 1);
}

/// The portable engine: vectors of Kokkos SIMD on the host (a team is one thread), one float per
/// thread on a device (a team is a thread block). Every element is widened to f32; products and
/// sums are f32 fused multiply-adds.
///
/// The scores are held transposed, Sᵀ (tile_kv × tile_q), so that a vector is 16 queries: the row
/// statistics are then vertical, and K and V are read by rows as they lie in memory, K by
/// broadcasts and V by vectors, without packing. Only Q is packed, transposed, once for all key
/// tiles.
///
///   scores      for keys in blocks of R, queries in blocks of NV vectors:
///                 for d: acc[R][NV] += k[r][d] · qᵀ[d][v]
///   accumulate  for head_dim in blocks of ND vectors, queries in blocks of RQ:
///                 for j: acc[RQ][ND] += pᵀ[j][i] · v[j][d]
template <class Exec, class T, int TileQ, int TileKv>
class SimdEngine {
 public:
  using Element = T;
  using Vec = VecOf<Exec>;
  using Team = TeamOf<Exec>;
  static constexpr int tile_q = TileQ;
  static constexpr int tile_kv = TileKv;
  static constexpr int lanes = lanes_v<Exec>;
  static constexpr bool on_host = is_host_v<Exec>;
  static constexpr bool columns_outer = on_host;  ///< of for_each_part()

  /// head_dim padded to whole vectors.
  KOKKOS_INLINE_FUNCTION static constexpr int padded(int head_dim) {
    return (head_dim + lanes - 1) / lanes * lanes;
  }

  KOKKOS_INLINE_FUNCTION static constexpr std::size_t scratch_bytes(int head_dim) {
    if constexpr (!on_host) return device_simd_scratch_bytes(TileQ, TileKv, head_dim);
    return simd_scratch_bytes(TileQ, TileKv, head_dim, padded(head_dim));
  }

  KOKKOS_INLINE_FUNCTION SimdEngine(const Team& team, float* scratch, int head_dim)
      : team_(team),
        head_dim_(head_dim),
        row_(on_host ? padded(head_dim) : head_dim | 1),
        rank_(team.team_rank()),
        size_(team.team_size()) {
    q_ = scratch;
    s_ = q_ + group_offset(groups, head_dim);
    o_ = s_ + static_cast<std::ptrdiff_t>(TileKv) * TileQ;
    staged_ = o_ + static_cast<std::ptrdiff_t>(TileQ) * row_;
    max_ = staged_ + static_cast<std::ptrdiff_t>(TileKv) * row_;
    sum_ = max_ + TileQ;
    rescale_ = sum_ + TileQ;
  }

  /// Packs the queries, and clears O and the statistics. row_pointer(r) is the first element of
  /// query row r; rows from `rows` on are zero.
  template <class RowPointer>
  KOKKOS_INLINE_FUNCTION void load_queries(int rows, const RowPointer& row_pointer) {
    rows_ = rows;
    for (int r = rank_; r < TileQ; r += size_) {
      const T* source = r < rows ? row_pointer(r) : nullptr;
      float* target = q_ + query_offset(r);
      for (int d = 0; d < head_dim_; ++d) {
        target[d * group_q] = source != nullptr ? static_cast<float>(source[d]) : 0.0F;
      }
      max_[r] = lowest_score;
      sum_[r] = 0.0F;
    }
    for (int i = rank_; i < TileQ * row_ / lanes; i += size_) store(o_ + i * lanes, Vec(0.0F));
    team_.team_barrier();
  }

  KOKKOS_INLINE_FUNCTION void scores(const Rows<T>& keys) {
    columns_ = keys.count;
    const Rows<float> k = stage(keys);
    constexpr int blocks = TileKv / block_kv;
    constexpr int tail = TileKv % block_kv;
    if (columns_ == TileKv || !on_host) {  // a device also computes the zero rows of a ragged tile
      for_each_item(blocks * groups, [&](int item) {
        score_block<block_kv>(k, item / groups * block_kv, item % groups);
      });
      if constexpr (tail > 0) {
        for_each_item(groups, [&](int item) { score_block<tail>(k, blocks * block_kv, item); });
      }
    } else {
      const int whole = columns_ / block_kv;
      for_each_item(whole * groups, [&](int item) {
        score_block<block_kv>(k, item / groups * block_kv, item % groups);
      });
      for_each_item((columns_ - whole * block_kv) * groups, [&](int item) {
        score_block<1>(k, whole * block_kv + item / groups, item % groups);
      });
    }
    team_.team_barrier();
  }

  /// Replaces every score by f(score, place), f taking and giving a Vec; numbers(r) are those of
  /// query row r.
  template <class Numbers, class F>
  KOKKOS_INLINE_FUNCTION void transform(const Numbers& numbers, const F& f) {
    constexpr int parts = on_host ? 1 : 4;  // of the columns, so that a device's threads have work
    for_each_item(TileQ / lanes * parts, [&](int item) {
      const int v = item % (TileQ / lanes);
      auto place = place_of_rows<Vec>([&](int lane) {
        return numbers(Kokkos::max(0, Kokkos::min(v * lanes + lane, rows_ - 1)));
      });
      const int part = item / (TileQ / lanes);
      const int end = columns_ * (part + 1) / parts;
      for (int j = columns_ * part / parts; j < end; ++j) {
        float* s = s_ + j * TileQ + v * lanes;
        place.column = Vec(static_cast<float>(j));
        store(s, Vec(f(load<Vec>(s), place)));
      }
    });
    team_.team_barrier();
  }

  /// Calls f(part) for all scores of the columns of the last scores(), on a host; f may change them.
  template <class F>
  void for_each_part(const F& f) {
    static_assert(TileQ % 16 == 0);
    f(ScorePart{s_, 0, TileQ, Kokkos::max(rows_, 1), columns_, false, TileQ});
  }

  /// Scores of one query row: score(j) for the columns of the last scores().
  struct ScoreRow {
    float* first;
    int columns;
    KOKKOS_INLINE_FUNCTION float& operator()(int column) const {
      return first[static_cast<std::ptrdiff_t>(column) * TileQ];
    }
  };

  /// Calls f(row, ScoreRow) for every query row; f may change the scores.
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_row(const F& f) {
    for_each_item(rows_, [&](int row) { f(row, ScoreRow{s_ + row, columns_}); });
    team_.team_barrier();
  }

  /// Scores outside of the columns range(row) of their query row become −inf.
  template <class F>
  KOKKOS_INLINE_FUNCTION void clip(const F& range) {
    for_each_item(TileQ / lanes, [&](int v) {
      float begin[lanes];
      float end[lanes];
      for (int lane = 0; lane < lanes; ++lane) {
        const int row = v * lanes + lane;
        const ColumnRange visible = row < rows_ ? range(row) : ColumnRange{};
        begin[lane] = visible.begin;
        end[lane] = visible.end;
      }
      const auto low = load<Vec>(begin);
      const auto high = load<Vec>(end);
      float* s = s_ + v * lanes;
      for (int j = 0; j < columns_; ++j, s += TileQ) {
        store(s, keep_between(load<Vec>(s), static_cast<float>(j), low, high));
      }
    });
    team_.team_barrier();
  }

  /// Running maximum, probabilities and sum, over the columns of the last scores(), which are in
  /// base 2 when multiplied with `factor` > 0.
  KOKKOS_INLINE_FUNCTION void softmax(float factor) {
    // Rows of keys side by side: a maximum or an exponential has a longer latency than one row can
    // hide.
    constexpr int chains = on_host ? 4 : 1;
    for (int v = rank_; v < TileQ / lanes; v += size_) {
      float* column = s_ + v * lanes;
      const auto score = [&](int j) { return load<Vec>(column + j * TileQ); };
      const Vec old_max = load<Vec>(max_ + v * lanes);
      const int whole = columns_ / chains * chains;
      Vec part[chains];
      for (int c = 0; c < chains; ++c) part[c] = Vec(-Kokkos::Experimental::infinity_v<float>);
      for (int j = 0; j < whole; j += chains) {
        for (int c = 0; c < chains; ++c) part[c] = max(part[c], score(j + c));
      }
      for (int j = whole; j < columns_; ++j) part[0] = max(part[0], score(j));
      Vec new_max = part[0];
      for (int c = 1; c < chains; ++c) new_max = max(new_max, part[c]);
      new_max = max(old_max, new_max);
      const auto probability = [&](int j) { return exp2(Vec((score(j) - new_max) * Vec(factor))); };

      for (int c = 0; c < chains; ++c) part[c] = Vec(0.0F);
      for (int j = 0; j < whole; j += chains) {
        Vec p[chains];
        for (int c = 0; c < chains; ++c) p[c] = probability(j + c);
        for (int c = 0; c < chains; ++c) {
          store(column + (j + c) * TileQ, p[c]);
          part[c] = part[c] + p[c];
        }
      }
      for (int j = whole; j < columns_; ++j) {
        const Vec p = probability(j);
        store(column + j * TileQ, p);
        part[0] = part[0] + p;
      }
      Vec sum = part[0];
      for (int c = 1; c < chains; ++c) sum = sum + part[c];
      const Vec rescale = exp2(Vec((old_max - new_max) * Vec(factor)));
      store(sum_ + v * lanes, fma(load<Vec>(sum_ + v * lanes), rescale, sum));
      store(max_ + v * lanes, new_max);
      store(rescale_ + v * lanes, rescale);
    }
    team_.team_barrier();
  }

  KOKKOS_INLINE_FUNCTION void accumulate(const Rows<T>& values) {
    const Rows<float> v = stage(values);
    const int vectors = padded(head_dim_) / lanes;
    constexpr int tail_q = TileQ % block_q == 0 ? block_q : TileQ % block_q;
    const int row_blocks = (rows_ + block_q - 1) / block_q;  // rows beyond rows_ are zero
    const auto column = [&]<int ND>(int first_dim) {
      return [&, first_dim](int block) {
        if (tail_q == block_q || (block + 1) * block_q <= TileQ) {
          value_block<block_q, ND>(v, block * block_q, first_dim);
        } else {
          value_block<tail_q, ND>(v, block * block_q, first_dim);
        }
      };
    };
    const int wide = vectors / block_d;
    for_each_item(wide * row_blocks, [&](int item) {
      column.template operator()<block_d>(item / row_blocks * block_d * lanes)(item % row_blocks);
    });
    const int first = wide * block_d * lanes;
    switch (vectors - wide * block_d) {
      case 1: for_each_item(row_blocks, column.template operator()<1>(first)); break;
      case 2: for_each_item(row_blocks, column.template operator()<2>(first)); break;
      case 3: for_each_item(row_blocks, column.template operator()<3>(first)); break;
      default: break;
    }
    team_.team_barrier();
  }

  /// Calls f(row, sum, max, write) for every query row: the sum of its probabilities (0 where it
  /// saw no visible key), its largest score, and write(target, factor), which stores factor ·
  /// O(row).
  template <class F>
  KOKKOS_INLINE_FUNCTION void for_each_output(const F& f) {
    for_each_item(rows_, [&](int r) {
      const float* o = o_ + static_cast<std::ptrdiff_t>(r) * row_;
      f(r, sum_[r], max_[r], [&](T* target, float factor) {
        const int whole = head_dim_ / lanes * lanes;
        for (int d = 0; d < whole; d += lanes) {
          store(target + d, Vec(load<Vec>(o + d) * Vec(factor)));
        }
        for (int d = whole; d < head_dim_; ++d) target[d] = static_cast<T>(o[d] * factor);
      });
    });
  }

 private:
  // Register blocks. 24 accumulators of 16 fill the 32 registers of AVX-512, 12 of 8 the 16 of
  // AVX2.
  static constexpr int group_vectors =
      !on_host || TileQ / lanes >= 4 ? (lanes == 8 ? 2 : 4) : (TileQ / lanes >= 2 ? 2 : 1);
  static constexpr int group_q = group_vectors * lanes;  ///< queries of a packed group
  static constexpr int groups = TileQ / group_q;
  static constexpr int accumulators = lanes == 16 ? 24 : lanes == 1 ? 16 : 12;
  static constexpr int block_kv = !on_host ? 4 : accumulators / group_vectors;
  static constexpr int block_d = lanes == 8 ? 2 : 4;
  static constexpr int block_q = !on_host ? 4 : accumulators / block_d;
  static_assert(TileQ % group_q == 0);

  KOKKOS_INLINE_FUNCTION static constexpr std::ptrdiff_t group_offset(int group, int head_dim) {
    return static_cast<std::ptrdiff_t>(group) * (head_dim + (on_host ? 0 : 1)) * group_q;
  }
  KOKKOS_INLINE_FUNCTION std::ptrdiff_t query_offset(int row) const {
    return group_offset(row / group_q, head_dim_) + row % group_q;
  }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_item(int count, const F& f) const {
    for (int item = rank_; item < count; item += size_) f(item);
  }

  /// f32 rows directly from memory when that is fast; otherwise widened into scratch, with rows
  /// padded to whole vectors and, on a device, missing rows zero.
  KOKKOS_INLINE_FUNCTION Rows<float> stage(const Rows<T>& source) {
    if constexpr (on_host && std::is_same_v<T, float>) {
      if (source.stride == row_ && head_dim_ == row_) return source;
    }
    const int rows = on_host ? source.count : TileKv;
    if constexpr (on_host) {
      const int whole = head_dim_ / lanes * lanes;
      for (int r = 0; r < rows; ++r) {
        const T* from = source.data + r * source.stride;
        float* to = staged_ + static_cast<std::ptrdiff_t>(r) * row_;
        for (int d = 0; d < whole; d += lanes) store(to + d, load<Vec>(from + d));
        for (int d = whole; d < row_; ++d)
          to[d] = d < head_dim_ ? static_cast<float>(from[d]) : 0.0F;
      }
    } else {
      for (int i = rank_; i < rows * head_dim_; i += size_) {
        const int r = i / head_dim_;
        const int d = i % head_dim_;
        staged_[r * row_ + d] =
            r < source.count ? static_cast<float>(source.data[r * source.stride + d]) : 0.0F;
      }
      team_.team_barrier();
    }
    return {staged_, row_, rows};
  }

  template <int R>
  KOKKOS_FORCEINLINE_FUNCTION void score_block(const Rows<float>& k, int first_key,
                                               int group) const {
    const float* q = q_ + group_offset(group, head_dim_);
    const float* key = k.data + first_key * k.stride;
    Vec acc[R][group_vectors];
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < group_vectors; ++v) acc[r][v] = Vec(0.0F);
    }
    for (int d = 0; d < head_dim_; ++d) {
      Vec query[group_vectors];
      for (int v = 0; v < group_vectors; ++v) query[v] = load<Vec>(q + v * lanes);
      q += group_q;
#pragma GCC unroll 24
      for (int r = 0; r < R; ++r) {
        const Vec broadcast(key[r * k.stride + d]);
        for (int v = 0; v < group_vectors; ++v) acc[r][v] = fma(broadcast, query[v], acc[r][v]);
      }
    }
    float* s = s_ + static_cast<std::ptrdiff_t>(first_key) * TileQ + group * group_q;
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < group_vectors; ++v) store(s + r * TileQ + v * lanes, acc[r][v]);
    }
  }

  template <int RQ, int ND>
  KOKKOS_FORCEINLINE_FUNCTION void value_block(const Rows<float>& v, int first_query,
                                               int first_dim) const {
    float* o = o_ + static_cast<std::ptrdiff_t>(first_query) * row_ + first_dim;
    const float* value = v.data + first_dim;
    const float* p = s_ + first_query;
    Vec acc[RQ][ND];
    for (int i = 0; i < RQ; ++i) {
      const Vec rescale(rescale_[first_query + i]);
      for (int n = 0; n < ND; ++n) acc[i][n] = load<Vec>(o + i * row_ + n * lanes) * rescale;
    }
    for (int j = 0; j < columns_; ++j) {
      Vec row[ND];
      for (int n = 0; n < ND; ++n) row[n] = load<Vec>(value + n * lanes);
#pragma GCC unroll 16
      for (int i = 0; i < RQ; ++i) {
        const Vec broadcast(p[i]);
        for (int n = 0; n < ND; ++n) acc[i][n] = fma(broadcast, row[n], acc[i][n]);
      }
      value += v.stride;
      p += TileQ;
    }
    for (int i = 0; i < RQ; ++i) {
      for (int n = 0; n < ND; ++n) store(o + i * row_ + n * lanes, acc[i][n]);
    }
  }

  const Team& team_;
  float* q_;  ///< groups × head_dim × group_q, and on a device a group's width between groups
  float* s_;  ///< tile_kv × tile_q: scores, then probabilities
  float* o_;  ///< tile_q × row_
  float* staged_;   ///< tile_kv × row_: widened K, then V
  float* max_;      ///< tile_q
  float* sum_;      ///< tile_q
  float* rescale_;  ///< tile_q: 2^(m − m′) of the last softmax()
  int head_dim_;
  int row_;  ///< floats between rows of O and of staged K and V
  int rows_ = 0;
  int columns_ = 0;
  int rank_;
  int size_;
};

}  // namespace katt::tile
