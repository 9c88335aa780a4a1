#pragma once

#include <Kokkos_Core.hpp>

#include "tile/cuda/fragments.hpp"

namespace katt::tile {

/// f of the values of all lanes of a warp, the same for each of them; combined in a fixed order. On a
/// host the value itself.
template <class F>
KOKKOS_FORCEINLINE_FUNCTION float over_warp(float value, const F& f) {
  KOKKOS_IF_ON_DEVICE((for (int mask = static_cast<int>(warp_size) / 2; mask > 0; mask /= 2) {
    value = f(value, __shfl_xor_sync(0xFFFFFFFFU, value, mask));
  }))
  (void)f;
  return value;
}

}  // namespace katt::tile
