#pragma once

#include <cstddef>

#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"

/// The variants of linear_cross_entropy.
///
/// naive: logits by a GEMM, stored in the dtype; cross_entropy's fused kernels on them; two GEMMs
/// from the stored gradients of the logits. It differs from "fused" in what it stores alone.
///
/// fused: for blocks of the vocabulary, all tokens at once:
///   forward   logits = hidden · weight(block)ᵀ;  merge their statistics into those of the tokens
///   backward  logits again, or as kept;  g in place;  dweight(block) = gᵀ · hidden;
///             dhidden += g · weight(block)
/// Blocks are alike, of as many columns as fit block_bytes at most, in f32. dhidden is summed in f32.
namespace katt::linear_cross_entropy::impl {

template <class Exec>
std::size_t naive_forward_bytes(const Exec& exec, const ForwardArgs& args);
template <class Exec>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace);
template <class Exec>
std::size_t naive_backward_bytes(const Exec& exec, const BackwardArgs& args);
template <class Exec>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace);

template <class Exec>
std::size_t fused_forward_bytes(const Exec& exec, const ForwardArgs& args);
template <class Exec>
void fused_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace);
template <class Exec>
std::size_t fused_backward_bytes(const Exec& exec, const BackwardArgs& args);
template <class Exec>
void fused_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace);

}  // namespace katt::linear_cross_entropy::impl
