#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "core/views.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// The product of the naive variants, what a careful user has at hand without fusing anything: in
/// f32 that of the BLAS library, on the operands as they lie; in 16 bits, for which the BLAS of a
/// host has no product (cblas_sbgemm is an option that Debian's OpenBLAS is built without, and
/// widening a whole weight first reads and writes it three times), gemm(), which rounds C once, as
/// the 16-bit products of libraries do.
namespace katt::linear {

/// Which units naive_gemm() uses: "blas", or those of gemm().
template <class Exec>
[[nodiscard]] std::string naive_gemm_engine(const Exec& exec, const GemmArgs& args);

/// Bytes of workspace that naive_gemm() needs; like gemm_workspace_bytes().
template <class Exec>
[[nodiscard]] std::size_t naive_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args);

/// As gemm(), with operands of one dtype; in f32 the bits of C depend on the number of threads.
template <class Exec>
void naive_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label);

/// naive_gemm() for `count` products of one shape, which do not depend on each other; on a host. In f32, where there are
/// enough for the threads, a thread computes whole ones, as batched products of libraries do.
void naive_gemm_batch(const Host& exec, std::int64_t count,
                      const std::function<GemmArgs(std::int64_t)>& product, Workspace workspace,
                      const char* label);

}  // namespace katt::linear
