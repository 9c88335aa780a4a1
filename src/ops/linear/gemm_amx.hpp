#pragma once

#include <cstddef>

#include "core/views.hpp"
#include "ops/linear/gemm.hpp"

/// gemm() on a host with AMX tiles (tile/amx.hpp): products of bf16 matrices, summed in f32.
namespace katt::linear::impl {

/// Whether amx_gemm() computes this product: both operands are bf16 and this process may use AMX.
[[nodiscard]] bool amx_takes(const GemmArgs& args);

template <class Exec>
std::size_t amx_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args);

/// Every sum is taken 32 steps of k at a time, in order: the sixteen even and the sixteen odd
/// products apart, then both added to what is there. The bits do not depend on how the matrices are
/// cut, nor on threads. Subnormal operands count as 0, and subnormal sums become 0.
template <class Exec>
void amx_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label);

}  // namespace katt::linear::impl
