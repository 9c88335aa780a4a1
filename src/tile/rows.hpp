#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "tile/vec.hpp"

/// Kernels over the rows of a tensor: one worker a row, a thread of a host or a thread block of a
/// device. The work of a row never depends on the number of workers.
namespace katt::tile {

/// The team of a host's worker: itself.
struct SoloTeam {
  KOKKOS_FORCEINLINE_FUNCTION static int team_rank() { return 0; }
  KOKKOS_FORCEINLINE_FUNCTION static int team_size() { return 1; }
  KOKKOS_FORCEINLINE_FUNCTION static void team_barrier() {}
  template <class Reducer>
  KOKKOS_FORCEINLINE_FUNCTION static void team_reduce(const Reducer&) {}
};

/// The team that works on one row.
template <class Exec>
using RowTeam = typename std::conditional_t<
    is_host_v<Exec>, std::type_identity<SoloTeam>,
    std::type_identity<typename Kokkos::TeamPolicy<Exec>::member_type>>::type;

/// Threads of a device's team.
inline constexpr int row_team_size = 128;

/// Vectors that for_row() hands out in one step, so that sums have independent accumulators.
inline constexpr int row_unroll = 4;

/// Covers the elements [0, count) of a row: vector(i, slot) for the whole vector at element i, with
/// a slot 0 … row_unroll − 1 that depends on i and the size of the team alone, then scalar(i) for
/// the tail.
template <class Exec, class Team, class VectorF, class ScalarF>
KOKKOS_FORCEINLINE_FUNCTION void for_row(const Team& team, std::int64_t count,
                                         const VectorF& vector, const ScalarF& scalar) {
  constexpr int lanes = lanes_v<Exec>;
  const std::int64_t step = static_cast<std::int64_t>(team.team_size()) * lanes;
  std::int64_t i = static_cast<std::int64_t>(team.team_rank()) * lanes;
  for (; i + (row_unroll - 1) * step + lanes <= count; i += row_unroll * step) {
    for (int slot = 0; slot < row_unroll; ++slot) vector(i + slot * step, slot);
  }
  for (; i + lanes <= count; i += step) vector(i, 0);
  if constexpr (lanes > 1) {
    for (i = count / lanes * lanes; i < count; ++i) scalar(i);
  }
}

/// for_row() for a body that takes two vectors at a time: pair(i, slot) for those at element i of a
/// host's row, with a slot 0 or 1 that depends on i alone, vector(i, slot) for a whole vector that
/// is left and for all elements of a device.
template <class Exec, class Team, class PairF, class VectorF, class ScalarF>
KOKKOS_FORCEINLINE_FUNCTION void for_row_pairs(const Team& team, std::int64_t count,
                                               const PairF& pair, const VectorF& vector,
                                               const ScalarF& scalar) {
  constexpr int lanes = lanes_v<Exec>;
  if constexpr (is_host_v<Exec> && lanes > 1) {
    std::int64_t i = 0;
    for (; i + 4 * lanes <= count; i += 4 * lanes) {
      pair(i, 0);
      pair(i + 2 * lanes, 1);
    }
    for (; i + lanes <= count; i += lanes) vector(i, 0);
    for (; i < count; ++i) scalar(i);
  } else {
    for_row<Exec>(team, count, vector, scalar);
  }
}

/// Sum of the accumulators of for_row() and of its scalar tail over the team; every thread gets it.
template <class Vec, class Team>
KOKKOS_FORCEINLINE_FUNCTION float sum_over(const Team& team, const Vec (&sums)[row_unroll],
                                           float tail) {
  static_assert(row_unroll == 4);
  float sum = reduce_sum(Vec((sums[0] + sums[1]) + (sums[2] + sums[3]))) + tail;
  team.team_reduce(Kokkos::Sum<float>(sum));
  return sum;
}

namespace impl {

template <class Exec, class F>
struct RowLaunch {
  F f;
  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::int64_t row) const { f(SoloTeam{}, row); }
  KOKKOS_FORCEINLINE_FUNCTION void operator()(
      const typename Kokkos::TeamPolicy<Exec>::member_type& team) const {
    f(team, static_cast<std::int64_t>(team.league_rank()));
  }
};

}  // namespace impl

/// Launches f(team, row), f a functor over RowTeam<Exec>, for the rows [0, rows).
template <class Exec, class F>
void for_each_row(const std::string& label, const Exec& exec, std::int64_t rows, const F& f) {
  if (rows <= 0) return;
  const impl::RowLaunch<Exec, F> launch{f};
  if constexpr (is_host_v<Exec>) {
    Kokkos::parallel_for(
        label, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, rows), launch);
  } else {
    Kokkos::parallel_for(
        label, Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(rows), row_team_size), launch);
  }
}

}  // namespace katt::tile
