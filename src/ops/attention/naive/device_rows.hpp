#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "ops/attention/problem.hpp"
#include "tile/cuda/warp.hpp"
#include "tile/engines/teams.hpp"
#include "tile/rows/columns.hpp"

#if defined(KATT_HAS_CUDA)

/// A device's passes over the rows of stored scores: a thread block a row, 16 bytes at a time. A
/// block reads a row of products once and keeps its scores in shared memory; it reads rows that are
/// too long for that again.
namespace katt::attention::impl::naive {

/// Distance of the rows of stored scores: whole chunks, so that every row begins at 16 bytes.
inline std::int64_t padded(std::int64_t columns) {
  return (columns + tile::chunk_elements - 1) / tile::chunk_elements * tile::chunk_elements;
}

/// Shared memory that a block may keep rows in. With three blocks a multiprocessor its memory is
/// still busy.
inline constexpr std::size_t most_kept_bytes = std::size_t{64} << 10;

/// Chunks that a thread loads at once from every row that it reads.
inline constexpr int row_chunks = 2;

/// Scratch of a block that keeps `rows` rows of so many columns: their bytes behind those of its
/// sums; only the sums when the rows are too long.
struct KeptRows {
  static constexpr std::int64_t sums = 8;  ///< floats
  std::int64_t stride;
  bool kept;
  std::size_t bytes;

  KeptRows(std::int64_t rows, std::int64_t columns)
      : stride(padded(columns)),
        kept(static_cast<std::size_t>(sums + rows * stride) * sizeof(float) <= most_kept_bytes),
        bytes(static_cast<std::size_t>(kept ? sums + rows * stride : sums) * sizeof(float)) {}

  KOKKOS_INLINE_FUNCTION float* row(float* scratch, std::int64_t n) const {
    return scratch + sums + n * stride;
  }
};

/// A block as a team that takes packs.
using RowBlock = tile::WideTeam<tile::BlockTeam>;
static_assert(tile::team_threads == tile::row_team_size);

/// f of the values of all threads of a block, the same for each of them; combined in a fixed order.
/// `places`: shared, of this call alone, one a warp.
template <class F>
KOKKOS_INLINE_FUNCTION float over_block(const tile::BlockTeam& team, float value, float* places,
                                        const F& f) {
  constexpr int warp = static_cast<int>(tile::warp_size);
  constexpr int warps = tile::team_threads / warp;
  static_assert(2 * warps <= KeptRows::sums);
  value = tile::over_warp(value, f);
  if (team.team_rank() % warp == 0) places[team.team_rank() / warp] = value;
  team.team_barrier();
  value = places[0];
  for (int w = 1; w < warps; ++w) value = f(value, places[w]);
  return value;
}

KOKKOS_INLINE_FUNCTION float sum_over_block(const tile::BlockTeam& team, float value,
                                            float* places) {
  return over_block(team, value, places, [](float a, float b) { return a + b; });
}

/// Turns the products of one query into scores.
template <class T, class Rule>
struct QueryScores {
  EntryScores<T, Rule> rule;
  typename EntryScores<T, Rule>::RowNumbers numbers;
  const T* bias = nullptr;
  bool bias_in_chunks = false;
  const std::uint8_t* blocks = nullptr;  ///< this query's row of the block mask
  int columns;                           ///< seq_kv
  int begin, end;                        ///< the interval of keys that are visible
  std::int64_t first, last;              ///< whole chunks that hold it

  KOKKOS_INLINE_FUNCTION QueryScores(const Scores<T, Rule>& scores, std::int64_t b, std::int64_t h,
                                     std::int64_t i, std::int64_t seq_kv)
      : rule(scores.of(b)), numbers(rule.row(h, i)), columns(static_cast<int>(seq_kv)) {
    begin = position<int>(rule.mask.interval.begin(i), seq_kv);
    end = Kokkos::max(begin, position<int>(rule.mask.interval.end(i), seq_kv));
    constexpr int chunk = tile::chunk_elements;
    first = begin / chunk * chunk;
    last = (end + chunk - 1) / chunk * chunk;
    if (begin == end) last = first;
    if (rule.bias) {
      bias = rule.bias.row(b, h, i);
      bias_in_chunks = reinterpret_cast<std::uintptr_t>(bias) % 16 == 0 && columns % chunk == 0;
    }
    const BlockMask& mask = rule.mask.blocks;
    if (mask.blocks != nullptr) blocks = mask.blocks + i / mask.size * mask.columns;
  }

  /// The column of a lane of a pack at column c.
  KOKKOS_INLINE_FUNCTION static int column_of(std::int64_t c, int lane) {
    return static_cast<int>(c) +
           lane / tile::chunk_elements * static_cast<int>(tile::chunk_stride) +
           lane % tile::chunk_elements;
  }
  KOKKOS_INLINE_FUNCTION bool visible(int j) const {
    return j >= begin && j < end &&
           (blocks == nullptr || blocks[static_cast<std::uint32_t>(j) /
                                        static_cast<std::uint32_t>(rule.mask.blocks.size)] != 0);
  }

  /// Scores of the products at column c, and their slopes; −inf where a key is not visible.
  template <class V>
  KOKKOS_INLINE_FUNCTION V operator()(V x, std::int64_t c, V& slope) const {
    slope = V(1.0F);
    if (!rule.folded()) {
      const auto place = tile::place_of_columns<float>(numbers);
      KATT_UNROLL
      for (int lane = 0; lane < V::lanes; ++lane) {
        x.lane[lane] = rule.score(x.lane[lane], place, column_of(c, lane), slope.lane[lane]);
      }
      if (bias != nullptr) x = x + bias_at<V>(c);
    }
    KATT_UNROLL
    for (int lane = 0; lane < V::lanes; ++lane) {
      if (!visible(column_of(c, lane))) {
        x.lane[lane] = -Kokkos::Experimental::infinity_v<float>;
      }
    }
    return x;
  }

 private:
  template <class V>
  KOKKOS_INLINE_FUNCTION V bias_at(std::int64_t c) const {
    if (bias_in_chunks) return tile::load<V>(bias + c);
    V added;
    KATT_UNROLL
    for (int lane = 0; lane < V::lanes; ++lane) {
      const int j = column_of(c, lane);
      added.lane[lane] = j < columns ? static_cast<float>(bias[j]) : 0.0F;
    }
    return added;
  }
};

/// Calls f.operator()<V>(c) for packs that together hold the columns [begin, end), whole chunks.
template <class F>
KOKKOS_INLINE_FUNCTION void for_row(const tile::BlockTeam& team, std::int64_t begin,
                                    std::int64_t end, const F& f) {
  tile::for_columns<Kokkos::Cuda, row_chunks>(RowBlock{team}, begin, end, f);
}

template <class T>
KOKKOS_INLINE_FUNCTION void clear_row(const tile::BlockTeam& team, T* row, std::int64_t begin,
                                      std::int64_t end) {
  for_row(team, begin, end, [&]<class V>(std::int64_t c) { tile::store(row + c, V(0.0F)); });
}

/// P = softmax(S) of one query, in place of the products, and lse. Roundings as in RowSoftmax,
/// except that nothing is stored between the products and P.
template <class T, class Rule>
struct DeviceSoftmax {
  T* stored;
  std::int64_t heads, seq_q, seq_kv;
  Scores<T, Rule> scores;
  RowValues<float> lse;
  KeptRows scratch;

  DeviceSoftmax(const ForwardArgs& args, const Rule& rule, T* products)
      : stored(products),
        heads(args.heads()),
        seq_q(args.seq_q()),
        seq_kv(args.seq_kv()),
        scores(args, rule),
        lse(args.lse),
        scratch(1, args.seq_kv()) {
    if (!std::is_same_v<T, float>) scores.scale = 1.0F;
  }

  template <class Team>
  KOKKOS_INLINE_FUNCTION void run(const Team& team, std::int64_t item, float* shared) const {
    const std::int64_t i = item % seq_q;
    const std::int64_t h = item / seq_q % heads;
    const std::int64_t b = item / seq_q / heads;
    T* row = stored + item * scratch.stride;
    const QueryScores<T, Rule> query(scores, b, h, i, seq_kv);
    float* const kept = scratch.row(shared, 0) - query.first;
    const auto scores_at = [&]<class V>(std::int64_t c) {
      V slope;
      return query(tile::load<V>(row + c), c, slope);
    };

    float largest = -Kokkos::Experimental::infinity_v<float>;
    for_row(team, query.first, query.last, [&]<class V>(std::int64_t c) {
      const V s = scores_at.template operator()<V>(c);
      largest = tile::max(largest, tile::reduce_max(s));
      if (scratch.kept) tile::store(kept + c, s);
    });
    largest = over_block(team, largest, shared, [](float x, float y) { return tile::max(x, y); });
    const ScoreUnit unit = query.rule.unit();
    // Finite, so that a row whose scores are all −inf has sum 0 without a case of its own.
    const float lowest = tile::lowest_score;
    largest = tile::max(lowest, largest);
    const auto exponential = [&]<class V>(const V& s) {
      return tile::exp2(V((s - V(largest)) * V(unit.factor)));
    };
    float sum = 0.0F;
    for_row(team, query.first, query.last, [&]<class V>(std::int64_t c) {
      const V s = scratch.kept ? tile::load<V>(kept + c) : scores_at.template operator()<V>(c);
      const V e = exponential(s);
      sum += tile::reduce_sum(e);
      if (scratch.kept) tile::store(kept + c, e);
    });
    sum = sum_over_block(team, sum, shared + KeptRows::sums / 2);
    const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
    for_row(team, query.first, query.last, [&]<class V>(std::int64_t c) {
      const V e =
          scratch.kept ? tile::load<V>(kept + c) : exponential(scores_at.template operator()<V>(c));
      tile::store(row + c, V(e * V(inverse)));
    });
    clear_row(team, row, 0, query.first);
    clear_row(team, row, query.last, scratch.stride);
    if (lse && team.team_rank() == 0) lse(b, h, i) = unit.lse(largest, sum);
  }
};

/// P and dS = P ∘ (dP − Δ) of one query, in place of the products, as RowGradient. In 16 bits they
/// take the first half of a row of f32.
template <class T, class Rule>
struct DeviceGradient {
  float* s;   ///< products Q·Kᵀ
  float* dp;  ///< dO·Vᵀ
  std::int64_t heads, seq_q, seq_kv;
  Scores<T, Rule> scores;
  RowValues<const float> lse;
  KeptRows scratch;

  DeviceGradient(const BackwardArgs& args, const Rule& rule, float* products, float* slopes)
      : s(products),
        dp(slopes),
        heads(args.heads()),
        seq_q(args.seq_q()),
        seq_kv(args.seq_kv()),
        scores(args, rule),
        lse(args.lse),
        scratch(scores.sloped() ? 3 : 2, args.seq_kv()) {}

  /// A thread's values of a pack: 2^(S − lse), dP, and the slopes of the scores.
  template <class V>
  struct Terms {
    V e, dp, slope;
  };

  template <class Team>
  KOKKOS_INLINE_FUNCTION void run(const Team& team, std::int64_t item, float* shared) const {
    const std::int64_t i = item % seq_q;
    const std::int64_t h = item / seq_q % heads;
    const std::int64_t b = item / seq_q / heads;
    const float* s_row = s + item * scratch.stride;
    const float* dp_row = dp + item * scratch.stride;
    T* p_row = reinterpret_cast<T*>(s + item * scratch.stride);
    T* ds_row = reinterpret_cast<T*>(dp + item * scratch.stride);
    const QueryScores<T, Rule> query(scores, b, h, i, seq_kv);
    const ScoreUnit unit = query.rule.unit();
    RowShift shift = RowShift::of_lse(lse(b, h, i), unit);
    float* const kept_e = scratch.row(shared, 0) - query.first;
    float* const kept_dp = scratch.row(shared, 1) - query.first;
    float* const kept_slope = scratch.row(shared, 2) - query.first;
    const bool sloped = scores.sloped();

    const auto read = [&]<class V>(std::int64_t c) {
      Terms<V> terms;
      const V products = tile::load<V>(s_row + c);
      terms.dp = tile::load<V>(dp_row + c);
      const V score = query(products, c, terms.slope);
      terms.e = tile::exp2(V(tile::fma(V(score - V(shift.shift)), V(unit.factor), V(-shift.low))));
      KATT_UNROLL
      for (int lane = 0; lane < V::lanes; ++lane) {  // memory behind the keys may hold any value
        if (query.column_of(c, lane) >= query.columns) terms.dp.lane[lane] = 0.0F;
      }
      return terms;
    };
    float sum = 0.0F;
    float weighted = 0.0F;
    const auto add_up = [&] {
      sum = 0.0F;
      weighted = 0.0F;
      for_row(team, query.first, query.last, [&]<class V>(std::int64_t c) {
        const Terms<V> terms = read.template operator()<V>(c);
        sum += tile::reduce_sum(terms.e);
        tile::add_product(weighted, terms.e, terms.dp);
        if (!scratch.kept) return;
        tile::store(kept_e + c, terms.e);
        tile::store(kept_dp + c, terms.dp);
        if (sloped) tile::store(kept_slope + c, terms.slope);
      });
      sum = sum_over_block(team, sum, shared);
      weighted = sum_over_block(team, weighted, shared + KeptRows::sums / 2);
    };
    add_up();
    if (!(sum > 0.5F && sum < 2.0F)) {
      float largest = tile::lowest_score;
      for_row(team, query.first, query.last, [&]<class V>(std::int64_t c) {
        V slope;
        largest = tile::max(largest, tile::reduce_max(query(tile::load<V>(s_row + c), c, slope)));
      });
      team.team_barrier();  // all have read the sums
      shift = {over_block(team, largest, shared, [](float x, float y) { return tile::max(x, y); }),
               0.0F};
      team.team_barrier();
      add_up();
    }
    const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
    const float delta = sum == 0.0F ? 0.0F : weighted / sum;
    const auto write = [&]<class V>(std::int64_t c, const Terms<V>& terms) {
      const V p = terms.e * V(inverse);
      tile::store(p_row + c, p);
      tile::store(ds_row + c, V(p * (terms.dp - V(delta)) * terms.slope));
    };
    if (scratch.kept) {
      for_row(team, query.first, query.last, [&]<class V>(std::int64_t c) {
        Terms<V> terms{tile::load<V>(kept_e + c), tile::load<V>(kept_dp + c), V(1.0F)};
        if (sloped) terms.slope = tile::load<V>(kept_slope + c);
        write(c, terms);
      });
    } else {
      // In 16 bits a chunk overwrites memory that another thread of this step may still have to
      // read.
      using V = tile::Pack<1>;
      for (std::int64_t step = query.first; step < query.last; step += tile::chunk_stride) {
        const std::int64_t c = step + team.team_rank() * tile::chunk_elements;
        Terms<V> terms;
        if (c < query.last) terms = read.template operator()<V>(c);
        team.team_barrier();
        if (c < query.last) write(c, terms);
      }
      team.team_barrier();
    }
    for (T* row : {p_row, ds_row}) {
      clear_row(team, row, 0, query.first);
      clear_row(team, row, query.last, scratch.stride);
    }
  }
};

}  // namespace katt::attention::impl::naive

#endif
