#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

#if defined(KATT_HAS_CUDA)

/// Products by cuBLASLt, which reads 16-bit matrices where they lie: tensor cores, f32 sums, the
/// bias in the epilogue. Documentation: docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API".
namespace katt::linear::impl {

/// True when it takes these operands: A and B of one dtype, C of the same or f32, the bias of C's.
bool cublas_takes(const GemmArgs& args);

/// Workspace that lets an algorithm split sums over k: 32 MiB since Hopper and 4 MiB before, as
/// NVIDIA recommends, and the bytes of its alignment.
std::size_t cublas_workspace_bytes(const Kokkos::Cuda& exec);

/// Equal products: distances from the matrices of one to those of the next, in elements. 0: they
/// share the matrix, which C may not be.
struct GemmBatch {
  std::int64_t count = 1;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

/// gemm() where cublas_takes(), of a batch of products in one launch, the first of which is `args`.
/// Descriptors and algorithm of a product are kept for the next of the same extents, distances,
/// dtypes and alignments. Sums that are split over k are added up in f32, in a fixed order. Throws
/// std::runtime_error where cuBLASLt fails or has no algorithm for the product.
void cublas_gemm(const Kokkos::Cuda& exec, const GemmArgs& args, Workspace workspace,
                 const char* label, const GemmBatch& batch = {});

}  // namespace katt::linear::impl

/// Many equal products of a device in as few launches as cuBLASLt allows.
namespace katt::linear {

/// An axis along which a product is repeated: how often, and how many elements lie between the
/// matrices of one and those of the next. 0: they share the matrix, which C may not be.
struct BatchAxis {
  std::int64_t count = 1;
  std::int64_t a = 0, b = 0, c = 0;
};

/// Axes (outermost first) with those joined into one along which every matrix goes on at one
/// distance, and without those of one product.
[[nodiscard]] std::vector<BatchAxis> joined(const std::vector<BatchAxis>& axes);

/// Bytes of workspace that batched_gemm() needs. Reads shapes, strides and dtypes only.
[[nodiscard]] std::size_t batched_gemm_workspace_bytes(const Kokkos::Cuda& exec,
                                                       const GemmArgs& args);

/// naive_gemm() for every product along the axes, the first of which is `args`. The longest of the
/// joined axes is a strided batch, one launch; along the others it is launched again.
void batched_gemm(const Kokkos::Cuda& exec, const GemmArgs& args,
                  const std::vector<BatchAxis>& axes, Workspace workspace, const char* label);

}  // namespace katt::linear

#endif
