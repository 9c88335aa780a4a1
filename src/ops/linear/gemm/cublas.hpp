#pragma once

#include <cstddef>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

#if defined(KATT_HAS_CUDA)

/// Products by cuBLASLt, which reads 16-bit matrices where they lie: tensor cores, f32 sums, the
/// bias in the epilogue. Documentation: docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API".
namespace katt::linear::impl {

/// Whether it takes these operands: A and B of one dtype, C of the same or f32, the bias of C's.
bool cublas_takes(const GemmArgs& args);

/// What an algorithm may use beside the operands, for sums over k that are split: what NVIDIA
/// recommends, 32 MiB since Hopper, 4 MiB before.
std::size_t cublas_workspace_bytes(const Kokkos::Cuda& exec);

/// gemm() where cublas_takes(). Descriptors and algorithm of a product are kept for the next of the
/// same extents, distances, dtypes and alignments. Sums that are split over k are added up in f32, in a fixed order.
/// Throws std::runtime_error where cuBLASLt fails or has no algorithm for the product.
void cublas_gemm(const Kokkos::Cuda& exec, const GemmArgs& args, Workspace workspace,
                 const char* label);

}  // namespace katt::linear::impl

#endif
