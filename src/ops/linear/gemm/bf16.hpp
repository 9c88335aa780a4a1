#pragma once

#include <cstddef>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// gemm() on a host with a unit for bf16 panels (tile/bf16_units.hpp): products of bf16 matrices,
/// summed in f32.
namespace katt::linear::impl {

/// Whether bf16_gemm() computes this product: both operands are bf16 and this process has
/// such a unit.
[[nodiscard]] bool bf16_takes(const GemmArgs& args);

template <class Exec>
std::size_t bf16_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args);

/// With AMX every sum is taken 32 steps of k at a time, in order: the sixteen even and the sixteen
/// odd products apart, then both added to what is there; with AVX512-BF16 two steps at a time. The
/// bits do not depend on how the matrices are cut, nor on threads. Subnormal operands count as 0,
/// and subnormal sums become 0.
template <class Exec>
void bf16_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label);

}  // namespace katt::linear::impl
