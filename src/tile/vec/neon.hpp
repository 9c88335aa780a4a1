#pragma once

#include "tile/vec/portable.hpp"

/// Four lanes: NEON.
namespace katt::tile::impl {

using HostVec = SimdOf<Kokkos::Experimental::simd_abi::neon_fixed_size<4>>;
using HostOps = PortableOps<HostVec>;
inline constexpr const char* host_name = "neon";

}  // namespace katt::tile::impl
