#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "ops/rmsnorm/rmsnorm_forward_kernel.hpp"

/// The statistics that a fused product needs.
namespace katt::rmsnorm_linear::impl {

/// Reads a row of x, writes h where there is a residual, and the two scales of the row
/// (linear::ElementScales), whose sums are those of rmsnorm.
template <class Exec, class T>
struct RowScales {
  rmsnorm::impl::Forward<Exec, T, false> norm;
  float* scales;  ///< (tokens, 2)

  template <class Team>
  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t row) const {
    const rmsnorm::impl::RowScale scale = norm.read_row(team, row);
    scales[2 * row] = scale.scale;
    scales[2 * row + 1] = scale.rstd;
  }
};

}  // namespace katt::rmsnorm_linear::impl
