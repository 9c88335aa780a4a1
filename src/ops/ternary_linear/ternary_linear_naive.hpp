#pragma once

#include <cstddef>

#include "ops/ternary_linear/ternary_linear.hpp"

/// The naive variant, the baseline that speedups refer to: dequantised weights in the dtype.
///   x_d = x_q / s_x by rows, stored in the dtype
///   out = x_d · W_dᵀ: for few tokens a matrix-vector product of ours, which reads the weights once
///         at the speed of memory; for many the GEMM of linear
///   dx = dout · W_d,  dweight = doutᵀ · x_d by the same GEMM
namespace katt::ternary_linear::impl {

template <class Exec, class T>
std::size_t naive_forward_bytes(const Exec& exec, const ForwardArgs& args);
template <class Exec, class T>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace);

template <class Exec, class T>
std::size_t naive_backward_bytes(const Exec& exec, const BackwardArgs& args);
template <class Exec, class T>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace);

}  // namespace katt::ternary_linear::impl
