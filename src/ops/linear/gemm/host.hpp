#pragma once

#include <cstddef>
#include <string>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// gemm() on a host: blocks of C are shared out among the threads, each block is made panel by
/// panel (gemm/micro.hpp). Few rows of A against rows of B, as in generation, are inner products
/// instead, which read B once and pack nothing. Products of bf16 matrices with AMX or AVX512-BF16:
/// gemm/bf16.hpp.
namespace katt::linear::impl {

template <class Exec>
std::size_t host_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args);

/// What computes this product: "amx", "avx512_bf16", or the vectors of the build.
[[nodiscard]] std::string host_gemm_engine(const GemmArgs& args);

template <class Exec>
void host_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label);

}  // namespace katt::linear::impl
