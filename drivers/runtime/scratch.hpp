#pragma once

#include <Kokkos_Core.hpp>

namespace katt::impl {

/// A kernel of teams that does nothing.
template <class Exec>
struct EmptyTeams {
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& /*team*/) const {}
};

/// Makes a host backend allocate the scratch of its threads now instead of with the first teams: it
/// is memory of the program, not of the model that is measured next.
template <class Exec>
void allocate_scratch(const Exec& exec) {
  Kokkos::parallel_for("katt::runtime::scratch", Kokkos::TeamPolicy<Exec>(exec, 1, 1),
                       EmptyTeams<Exec>());
}

}  // namespace katt::impl
