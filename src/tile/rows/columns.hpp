#pragma once

#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "tile/rows/rows.hpp"
#include "tile/vec/vec.hpp"

/// Loops and sums over the columns of a row, written once for vectors and for the rest.
namespace katt::tile {

/// Vectors that for_columns() hands out in one step to a body with slots.
inline constexpr int column_slots = 4;

/// Chunks of a pack that a body gets at most, unless it asks for fewer: enough loads in flight with
/// one tensor of 16 bits.
inline constexpr int most_chunks = 4;

namespace impl {

/// Calls f.operator()<V>(c) for packs of `Most` chunks and then of fewer that together hold the
/// columns [begin, end), whole chunks. The thread of a column depends on nothing else.
template <int Most, class Team, class F>
KOKKOS_FORCEINLINE_FUNCTION void for_packs(const Team& team, std::int64_t begin, std::int64_t end,
                                           const F& f) {
  static_assert(Most == 1 || Most == 2 || Most == 4);
  std::int64_t c = begin + static_cast<std::int64_t>(team.team_rank()) * chunk_elements;
  KATT_NO_UNROLL
  for (; c + (Most - 1) * chunk_stride < end; c += Most * chunk_stride) {
    f.template operator()<Pack<Most>>(c);
  }
  if constexpr (Most == 4) {
    if (c + chunk_stride < end) {
      f.template operator()<Pack<2>>(c);
      c += 2 * chunk_stride;
    }
  }
  if constexpr (Most > 1) {
    if (c < end) f.template operator()<Pack<1>>(c);
  }
}

/// The chunks from c on of a row, as they lie in memory.
template <int Chunks, class T>
struct RawPack {
  RawChunk<T> chunk[Chunks];

  KOKKOS_FORCEINLINE_FUNCTION explicit RawPack(const T* source) {
    KATT_UNROLL
    for (int k = 0; k < Chunks; ++k) chunk[k] = load_raw(source + k * chunk_stride);
  }
  KOKKOS_FORCEINLINE_FUNCTION Pack<Chunks> widened() const {
    Pack<Chunks> pack;
    KATT_UNROLL
    for (int k = 0; k < Chunks; ++k) widen(chunk[k], pack.lane + k * chunk_elements);
    return pack;
  }
};

}  // namespace impl

/// Calls f(pack) for the elements [0, n) of a row, whole chunks, shared among the threads of a
/// WideTeam as for_columns() shares them. A thread has loaded its next pack when f works on one, so
/// that long arithmetic does not leave the memory idle.
template <class Team, class T, class F>
KOKKOS_FORCEINLINE_FUNCTION void for_packs_ahead(const Team& team, const T* row, std::int64_t n,
                                                 const F& f) {
  constexpr int most = sizeof(T) == 2 ? most_chunks : most_chunks / 2;
  constexpr std::int64_t step = most * chunk_stride;
  std::int64_t c = static_cast<std::int64_t>(team.team_rank()) * chunk_elements;
  const auto whole = [&](std::int64_t at) { return at + (most - 1) * chunk_stride < n; };
  if (whole(c)) {
    impl::RawPack<most, T> current(row + c);
    KATT_NO_UNROLL
    for (; whole(c + step); c += step) {
      const impl::RawPack<most, T> next(row + c + step);
      f(current.widened());
      current = next;
    }
    f(current.widened());
    c += step;
  }
  for (; c < n; c += chunk_stride) f(load<Pack<1>>(row + c));
}

/// Calls f.operator()<Vec>(c) for the whole vectors of columns [begin, end) and
/// f.operator()<float>(c) for every remaining column, shared among the threads of a team; a
/// WideTeam gets only packs. A body may take a slot, 0 … column_slots − 1, beside c, so that its
/// sums have independent accumulators: the slot depends only on c and the size of the team.
template <class Exec, int Most = most_chunks, class Team, class F>
KOKKOS_FORCEINLINE_FUNCTION void for_columns(const Team& team, std::int64_t begin, std::int64_t end,
                                             const F& f) {
  using Vec = VecOf<Exec>;
  constexpr int lanes = lanes_v<Exec>;
  constexpr bool slots = requires { f.template operator()<Vec>(begin, 0); };
  const auto call = [&]<class V>(std::int64_t c, int slot) {
    if constexpr (slots) {
      f.template operator()<V>(c, slot);
    } else {
      f.template operator()<V>(c);
    }
  };
  if constexpr (is_wide_v<Team>) {
    impl::for_packs<Most>(team, begin, end,
                          [&]<class V>(std::int64_t c) { call.template operator()<V>(c, 0); });
  } else {
    const std::int64_t vectors = end > begin ? (end - begin) / lanes : 0;
    const std::int64_t step = team.team_size();
    std::int64_t v = team.team_rank();
    if constexpr (slots) {
      for (; v + (column_slots - 1) * step < vectors; v += column_slots * step) {
        for (int slot = 0; slot < column_slots; ++slot) {
          call.template operator()<Vec>(begin + (v + slot * step) * lanes, slot);
        }
      }
    }
    for (; v < vectors; v += step) call.template operator()<Vec>(begin + v * lanes, 0);
    if constexpr (lanes > 1) {
      for (std::int64_t c = begin + vectors * lanes + team.team_rank(); c < end; c += step) {
        call.template operator()<float>(c, 0);
      }
    }
  }
}

/// for_columns() for a body that takes two vectors at a time, written out three times because the
/// pairs alone are worth inlining: pair(c, slot) for those at column c of a host's row, with a slot
/// 0 or 1, vector(c, slot) for a remaining whole vector and for all columns of a device, scalar(c)
/// for columns outside of vectors. A WideTeam's packs go to vector.operator()<V>(c, slot).
template <class Exec, int Most = most_chunks, class Team, class PairF, class VectorF, class ScalarF>
KOKKOS_FORCEINLINE_FUNCTION void for_column_pairs(const Team& team, std::int64_t end,
                                                  const PairF& pair, const VectorF& vector,
                                                  const ScalarF& scalar) {
  constexpr int lanes = lanes_v<Exec>;
  if constexpr (is_wide_v<Team>) {
    impl::for_packs<Most>(team, 0, end,
                          [&]<class V>(std::int64_t c) { vector.template operator()<V>(c, 0); });
  } else if constexpr (is_host_v<Exec> && lanes > 1) {
    static_assert(column_slots == 4);
    std::int64_t c = 0;
    for (; c + 4 * lanes <= end; c += 4 * lanes) {
      pair(c, 0);
      pair(c + 2 * lanes, 1);
    }
    for (; c + lanes <= end; c += lanes) vector(c, 0);
    for (; c < end; ++c) scalar(c);
  } else {
    for_columns<Exec>(team, 0, end, [&]<class V>(std::int64_t c, int slot) { vector(c, slot); });
  }
}

/// Sum over the team of the accumulators, one a slot, and of the columns outside of vectors; every
/// thread gets it.
template <class Vec, class Team>
KOKKOS_FORCEINLINE_FUNCTION float sum_over(const Team& team, const Vec (&sums)[column_slots],
                                           float tail) {
  static_assert(column_slots == 4);
  float sum = reduce_sum(Vec((sums[0] + sums[1]) + (sums[2] + sums[3]))) + tail;
  team.team_reduce(Kokkos::Sum<float>(sum));
  return sum;
}

/// A sum over the columns of a row, in as many accumulators as the loop has slots.
template <class Exec, int Slots = 1>
class RowSum {
  static_assert(Slots == 1 || Slots == column_slots);
  using Vec = VecOf<Exec>;

 public:
  KOKKOS_FORCEINLINE_FUNCTION RowSum() {
    for (Vec& sum : vectors_) sum = Vec(0.0F);
  }
  template <class V>
  KOKKOS_FORCEINLINE_FUNCTION void add(const V& value, int slot = 0) {
    auto& sum = at<V>(slot);
    if constexpr (PackVector<V>) {
      sum += reduce_sum(value);
    } else {
      sum = sum + value;
    }
  }
  /// Adds a·b.
  template <class V>
  KOKKOS_FORCEINLINE_FUNCTION void multiply_add(const V& a, const V& b, int slot = 0) {
    add_product(at<V>(slot), a, b);
  }
  /// The sum of this thread.
  KOKKOS_FORCEINLINE_FUNCTION float mine() const {
    if constexpr (Slots == 1) {
      return reduce_sum(vectors_[0]) + tail_;
    } else {
      return reduce_sum(Vec((vectors_[0] + vectors_[1]) + (vectors_[2] + vectors_[3]))) + tail_;
    }
  }
  /// The sum over the team, the same for all of its threads; the order of the additions is fixed.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION float total(const Team& team) const {
    float sum = mine();
    team.team_reduce(Kokkos::Sum<float>(sum));
    return sum;
  }

 private:
  template <class V>
  KOKKOS_FORCEINLINE_FUNCTION auto& at(int slot) {
    if constexpr (std::is_same_v<V, Vec> || PackVector<V>) {
      return vectors_[slot];
    } else {
      return tail_;
    }
  }

  Vec vectors_[Slots];
  float tail_ = 0.0F;
};

/// A maximum over the columns of a row, starting from a given value, in as many accumulators as the
/// loop has slots. A NaN may be lost.
template <class Exec, int Slots = 1>
class RowMax {
  static_assert(Slots == 1 || Slots == column_slots);
  using Vec = VecOf<Exec>;

 public:
  KOKKOS_FORCEINLINE_FUNCTION explicit RowMax(float start) : tail_(start) {
    for (Vec& vector : vectors_) vector = Vec(start);
  }
  template <class V>
  KOKKOS_FORCEINLINE_FUNCTION void add(const V& value, int slot = 0) {
    if constexpr (PackVector<V>) {
      vectors_[slot] = max(vectors_[slot], reduce_max(value));
    } else if constexpr (std::is_same_v<V, Vec>) {
      vectors_[slot] = max(vectors_[slot], value);
    } else {
      tail_ = max(tail_, value);
    }
  }
  /// The maximum of this thread.
  KOKKOS_FORCEINLINE_FUNCTION float mine() const {
    Vec largest = vectors_[0];
    for (int slot = 1; slot < Slots; ++slot) largest = max(largest, vectors_[slot]);
    return max(reduce_max(largest), tail_);
  }
  /// The maximum over the team, the same for all of its threads.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION float total(const Team& team) const {
    float largest = mine();
    team.team_reduce(Kokkos::Max<float>(largest));
    return largest;
  }

 private:
  Vec vectors_[Slots];
  float tail_;
};

/// N sums over the columns of a row, the same for all threads of the team.
template <int N>
struct RowSums {
  float of[N];
};

/// Σ_c terms(c): f(c, terms) sets the N terms of the vector, or of the element, at column c. Each
/// has four sums side by side, so that the additions do not wait for each other: 10 to 20 % faster
/// than RowSum in loops with little other work.
template <class Exec, int N, class Team, class F>
KOKKOS_FORCEINLINE_FUNCTION RowSums<N> row_sums(const Team& team, std::int64_t columns,
                                                const F& f) {
  RowSum<Exec, column_slots> sums[N];
  for_columns<Exec>(team, 0, columns, [&]<class V>(std::int64_t c, int slot) {
    V terms[N];
    f(c, terms);
    for (int k = 0; k < N; ++k) sums[k].add(terms[k], slot);
  });
  RowSums<N> totals;
  for (int k = 0; k < N; ++k) totals.of[k] = sums[k].total(team);
  return totals;
}

}  // namespace katt::tile
