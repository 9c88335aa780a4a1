#pragma once

#include <cstddef>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// gemm() on a host: blocks of C are shared out among the threads, each block is made panel by
/// panel (gemm/micro.hpp). Few rows of A against rows of B are inner products instead
/// (gemm/inner/products.hpp). 16-bit operands are widened.
namespace katt::linear::impl {

template <class Exec>
std::size_t host_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args);

template <class Exec>
void host_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label);

}  // namespace katt::linear::impl
