#pragma once

#include <cstddef>
#include <string>

#include "op/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"

/// The naive variant of the forward pass, the baseline that speedups refer to:
///   S = scale · Q·Kᵀ for every head, stored (batch, heads, seq_q, seq_kv) in the dtype
///   P = masked softmax(S), in place
///   out = P · V
/// The products are linear::naive_gemm(), on the operands in place. Stored S and P are rounded to
/// the dtype, as in an unfused implementation. On a host the f32 products of the heads are a batch,
/// of which each thread computes whole ones.
///
/// The naive variant of the backward pass: P and dS of all heads stored (batch, heads, seq_q,
/// seq_kv) in the dtype, and a product for each of the five:
///   S = scale·Q·Kᵀ, P = softmax(S);  dP = dO·Vᵀ, dS = P ∘ (dP − Δ);
///   dV = Pᵀ·dO, dQ = scale·dS·K, dK = scale·dSᵀ·Q
/// S and dP of one head at a time are f32.
///
/// On a device every step is one launch over all heads, or as few as the strides of the tensors
/// allow: products are strided batches of cuBLASLt, with the query heads of a group as rows of one
/// product if their layout allows, and a thread block takes each row of scores. Rows of scores are
/// padded to 16 bytes. In the backward pass S and dP of all heads are f32, and P and dS take their
/// place.
namespace katt::attention::impl {

/// The unit that multiplies: "blas", or the units of linear's products.
template <class Exec>
std::string naive_engine(const Exec& exec, const ForwardArgs& args);

template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& exec, const ForwardArgs& args);

template <class Exec, class T, class Rule>
void run_naive(const Exec& exec, const ForwardArgs& args, const Rule& rule, Workspace workspace);

template <class Exec>
std::string naive_engine(const Exec& exec, const BackwardArgs& args);

template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& exec, const BackwardArgs& args);

template <class Exec, class T, class Rule>
void run_naive(const Exec& exec, const BackwardArgs& args, const Rule& rule, Workspace workspace);

}  // namespace katt::attention::impl
