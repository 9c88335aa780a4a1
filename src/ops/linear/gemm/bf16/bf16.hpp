#pragma once

#include <cstddef>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "tile/bf16/bf16_units.hpp"

/// Products of bf16 matrices, packed into panels, on a unit of a host (tile/bf16/bf16_units.hpp); sums are
/// f32.
namespace katt::linear::impl {

using tile::bf16_panels::UnitName;

/// True when the units take the product: both operands are bf16 and not empty.
[[nodiscard]] bool bf16_takes(const GemmArgs& args);

template <class Exec>
std::size_t bf16_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args, UnitName unit);

/// With AMX every sum is taken 32 steps of k at a time, in order: the sixteen even and the sixteen
/// odd products apart, then both added to what is there; with AVX512-BF16 two steps at a time. The
/// bits do not depend on how the matrices are cut, nor on threads. Subnormal operands count as 0,
/// and subnormal sums become 0.
template <class Exec>
void bf16_gemm(const Exec& exec, const GemmArgs& args, UnitName unit, Workspace workspace,
               const char* label);

}  // namespace katt::linear::impl
