#pragma once

#include <cstddef>

#include "core/execution.hpp"
#include "core/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"

#if defined(KATT_HAS_CUDA)

/// The variants on the tensor cores of CUDA devices, for f16 and bf16.
namespace katt::attention::impl {

/// ok, or skipped: the dtype, the tile, head_dim, the alignment of a tensor, the build or the
/// device does not fit.
template <class T>
Status mma_supports(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile);
template <class T, class Rule>
void mma_forward(const Kokkos::Cuda& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
                 Workspace workspace);

template <class T>
Status wgmma_supports(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile);
template <class T, class Rule>
void wgmma_forward(const Kokkos::Cuda& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
                   Workspace workspace);

template <class T>
Status mma_backward_supports(const Kokkos::Cuda& exec, const BackwardArgs& args, Tile tile);
template <class T, class Rule>
void mma_backward(const Kokkos::Cuda& exec, const BackwardArgs& args, const Rule& rule, Tile tile,
                  Workspace workspace);

/// "flash_mma": mma.sync, ldmatrix and cp.async, compute capability 8.0 and later.
Variant<Kokkos::Cuda, ForwardArgs> mma_variant();
/// Its backward pass, under the same name. The workspace holds lse and Δ of every query row.
Variant<Kokkos::Cuda, BackwardArgs> mma_backward_variant();
/// "flash_wgmma": the matrix instructions of a warpgroup, compute capability 9.0 in a build for
/// sm_90a.
Variant<Kokkos::Cuda, ForwardArgs> wgmma_variant();

}  // namespace katt::attention::impl

#endif
