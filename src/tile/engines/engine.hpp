#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>
#include <Kokkos_SIMD.hpp>

#include "tile/vec/vec.hpp"

/// The members that all tile engines have. An engine holds one tile of queries and, for every tile
/// of keys that streams past, computes
///   scores      S = Q·Kᵀ   (tile_q × tile_kv)
///   softmax     m′ = max(m, rowmax S),  P = 2^(c·(S − m′)),  l = l·2^(c·(m − m′)) + rowsum P
///               (online softmax, Milakov & Gimelshein 2018, arXiv:1805.02867, Algorithm 3)
///   accumulate  O = O·2^(c·(m − m′)) + P·V        (FlashAttention-2, arXiv:2307.08691)
/// in f32, where c > 0 puts the scores in base 2. The maximum is subtracted before c multiplies, so
/// that scores of any size have exponents of at most 0. The members are called by every thread of a
/// team, in this order; each ends with the tile in a state that all threads of the team see. Each
/// engine chooses the form of S, P and O in memory: code that changes scores accesses them through
/// transform(), for_each_row() and clip().
namespace katt::tile {

/// Rows of keys or values in memory: `count` rows of `head_dim` elements, `stride` elements apart.
template <class T>
struct Rows {
  const T* data = nullptr;
  std::int64_t stride = 0;
  int count = 0;
};

/// Columns begin ≤ j < end of a tile of scores.
struct ColumnRange {
  float begin = 0;
  float end = 0;
};

/// Numbers that belong to a row of scores.
template <int N>
struct RowNumbers {
  float value[N];
};

/// The place of scores: the columns of a vector of them, and the numbers of their rows.
template <class Vec, int N>
struct Place {
  Vec column;
  Vec row[N];
};

/// The places of `lanes` rows one below the other in column 0. numbers(lane) are those of a row.
template <class Vec, class Numbers>
KOKKOS_FORCEINLINE_FUNCTION auto place_of_rows(const Numbers& numbers) {
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  constexpr int count = sizeof(numbers(0)) / sizeof(float);
  Place<Vec, count> place;
  place.column = Vec(0.0F);
  if constexpr (lanes == 1) {
    const auto of = numbers(0);
    for (int n = 0; n < count; ++n) place.row[n] = of.value[n];
  } else {
    float values[count][lanes];
    for (int lane = 0; lane < lanes; ++lane) {
      const auto of = numbers(lane);
      for (int n = 0; n < count; ++n) values[n][lane] = of.value[n];
    }
    for (int n = 0; n < count; ++n) place.row[n] = load<Vec>(values[n]);
  }
  return place;
}

/// The places of `lanes` columns side by side, from 0 on, in a row with these numbers.
template <class Vec, int N>
KOKKOS_FORCEINLINE_FUNCTION Place<Vec, N> place_of_columns(const RowNumbers<N>& numbers) {
  constexpr int lanes =
      sizeof(Vec) / sizeof(float);  // NOLINT(bugprone-sizeof-expression): 1 of a float
  Place<Vec, N> place;
  float columns[lanes];
  for (int lane = 0; lane < lanes; ++lane) columns[lane] = static_cast<float>(lane);
  place.column = load<Vec>(columns);
  for (int n = 0; n < N; ++n) place.row[n] = Vec(numbers.value[n]);
  return place;
}

/// Scores of some query rows of a tile, from row `first` on. Rows lie `stride` floats apart with
/// neighbouring columns side by side (columns_inner), or columns with neighbouring rows. 16 neighbours
/// lie together, the next 16 `vector` floats behind them.
struct ScorePart {
  float* score;
  int first;
  int rows;      ///< with those that do not exist
  int existing;  ///< rows that exist, at least 1
  int columns;   ///< with those that do not exist
  bool columns_inner;
  int stride;
  int vector = 16;
};

/// score where begin ≤ column < end, else −inf, lane by lane.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec keep_between(const Vec& score, float column, const Vec& begin,
                                             const Vec& end) {
  const float hidden = -Kokkos::Experimental::infinity_v<float>;
  if constexpr (std::is_same_v<Vec, float>) {
    return begin <= column && column < end ? score : hidden;
  } else {
    const Vec j(column);
    return Kokkos::Experimental::condition(begin <= j && j < end, score, Vec(hidden));
  }
}

}  // namespace katt::tile
