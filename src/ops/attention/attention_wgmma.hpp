#pragma once

#include "core/variants.hpp"
#include "ops/attention/attention.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

namespace katt::attention::impl {

/// ok, or skipped: the dtype, the tile, the alignment of a tensor, the build or the device does not
/// fit. Instantiated by dtype in attention_wgmma_DTYPE.cpp.
template <class T>
Status wgmma_supports(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile);

template <class T>
void wgmma_forward(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile);

/// "flash_wgmma": the matrix instructions of a warpgroup, f16 and bf16, compute capability 9.0 in a
/// build for sm_90a.
Variant<Kokkos::Cuda, ForwardArgs> wgmma_variant();

}  // namespace katt::attention::impl

#endif
