#pragma once

#include <cstddef>

#include "core/variants.hpp"
#include "ops/attention/attention_backward.hpp"

/// The naive variant of the backward pass: P and dS of all heads stored (batch, heads, seq_q,
/// seq_kv) in the dtype, and a library GEMM (KokkosBlas::gemm, f32) for each of the five products:
///   S = scale·Q·Kᵀ, P = softmax(S);  dP = dO·Vᵀ, dS = P ∘ (dP − Δ);
///   dV = Pᵀ·dO, dQ = scale·dS·K, dK = scale·dSᵀ·Q
namespace katt::attention::impl {

template <class Exec, class T>
std::size_t naive_backward_workspace_bytes(const BackwardArgs& args);

template <class Exec, class T>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace);

}  // namespace katt::attention::impl
