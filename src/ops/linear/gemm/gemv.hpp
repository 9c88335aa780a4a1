#pragma once

#include <Kokkos_Core.hpp>

#include "ops/linear/gemm/gemm.hpp"

#if defined(KATT_HAS_CUDA)

/// out = x · weightᵀ of one token on a device. The product is as fast as the weight can be read: a
/// warp reads a row of it once, 16 bytes a lane and several loads together. The token lies in the L1
/// cache.
namespace katt::linear::impl {

/// True for A · Bᵀ of one dtype, into the same or f32, with a bias of C's dtype, of one row of A.
[[nodiscard]] bool gemv_takes(const GemmArgs& args);

/// gemm() where gemv_takes(). Needs no workspace.
void gemv(const Kokkos::Cuda& exec, const GemmArgs& args, const char* label);

}  // namespace katt::linear::impl

#endif
