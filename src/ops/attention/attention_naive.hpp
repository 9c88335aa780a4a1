#pragma once

#include <cstddef>

#include <Kokkos_Core.hpp>

#include "core/variants.hpp"
#include "ops/attention/attention.hpp"

/// The naive variant of the forward pass, the baseline that speedups refer to:
///   S = scale · Q·Kᵀ by a library GEMM, for every head, stored (batch, heads, seq_q, seq_kv) in
///   the dtype P = masked softmax(S), in place out = P · V by a library GEMM
/// The GEMM is KokkosBlas::gemm in f32 (OpenBLAS on a host, cuBLAS on a device where it is built
/// in). For f16 and bf16 operands are widened block by block, and S and P are rounded to the dtype
/// where they are stored, as an unfused implementation in that dtype does.
namespace katt::attention::impl {

template <class Exec, class T>
std::size_t naive_workspace_bytes(const ForwardArgs& args);

template <class Exec, class T>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace);

}  // namespace katt::attention::impl
