#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "tile/rows/pack.hpp"

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

/// A device's team whose threads take packs (tile/rows/pack.hpp): the loops over columns hand them out.
template <class Member>
struct WideTeam {
  const Member& member;

  KOKKOS_FORCEINLINE_FUNCTION int team_rank() const { return member.team_rank(); }
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int team_size() { return row_team_size; }
  KOKKOS_FORCEINLINE_FUNCTION void team_barrier() const { member.team_barrier(); }
  template <class Reducer>
  KOKKOS_FORCEINLINE_FUNCTION void team_reduce(const Reducer& reducer) const {
    member.team_reduce(reducer);
  }
};

template <class Team>
inline constexpr bool is_wide_v = false;
template <class Member>
inline constexpr bool is_wide_v<WideTeam<Member>> = true;

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

/// scripts/kernel_table knows them by this name.
template <class Exec, class F>
struct WideRows {
  F f;
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Member& team) const {
    f(WideTeam<Member>{team}, static_cast<std::int64_t>(team.league_rank()));
  }
};

}  // namespace impl

/// Launches f(team, row), f a functor over RowTeam<Exec>, for the rows [0, rows).
template <class Exec, class F>
void for_each_row(const Exec& exec, const std::string& label, std::int64_t rows, const F& f) {
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

/// for_each_row() with WideTeam, on a device.
template <class Exec, class F>
void launch_wide_rows(const Exec& exec, const std::string& label, std::int64_t rows, const F& f) {
  static_assert(!is_host_v<Exec>);
  if (rows <= 0) return;
  Kokkos::parallel_for(label, Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(rows), row_team_size),
                       impl::WideRows<Exec, F>{f});
}

/// for_each_row() for an f that takes any team: with WideTeam on a device when `wide`, that is
/// are_chunks() of all tensors in the loops over columns of f.
template <class Exec, class F>
void for_each_wide_row(const Exec& exec, const std::string& label, std::int64_t rows, const F& f,
                       bool wide) {
  if constexpr (!is_host_v<Exec>) {
    if (wide) return launch_wide_rows(exec, label, rows, f);
  }
  for_each_row(exec, label, rows, f);
}

}  // namespace katt::tile
