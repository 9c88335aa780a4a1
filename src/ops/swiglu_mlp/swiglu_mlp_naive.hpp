#pragma once

#include <cstddef>

#include "ops/swiglu_mlp/swiglu_mlp.hpp"

/// The naive variant, the baseline that speedups and memory refer to: gate, up and what follows
/// from them are stored for all tokens in the dtype, every operation is a launch of its own (the
/// products those of linear's gemm(), the activation the naive passes of swiglu), and a buffer is
/// used again as soon as its values are no longer needed.
namespace katt::swiglu_mlp::impl {

template <class Exec>
std::size_t naive_workspace_bytes(const Exec& exec, const ForwardArgs& args);
template <class Exec>
std::size_t naive_workspace_bytes(const Exec& exec, const BackwardArgs& args);

template <class Exec>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace);
template <class Exec>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace);

}  // namespace katt::swiglu_mlp::impl
