#pragma once

#include "core/variants.hpp"
#include "ops/attention/attention.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

/// The tensor-core variants of the forward pass on CUDA devices. Instantiated by dtype in
/// attention_mma_DTYPE.cpp.
namespace katt::attention::impl {

/// ok, or skipped: the dtype, the tile, the alignment of a tensor, or the device does not fit.
template <class T>
Status mma_supports(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile);

template <class T>
void mma_forward(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile);

/// "flash_mma": mma.sync, ldmatrix and cp.async, f16 and bf16, compute capability 8.0 and later.
Variant<Kokkos::Cuda, ForwardArgs> mma_variant();

}  // namespace katt::attention::impl

#endif
