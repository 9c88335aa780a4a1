#pragma once

#include <cstddef>

#include "ops/rmsnorm/rmsnorm.hpp"

/// The naive variant, the baseline that speedups refer to: every step a kernel of its own, with
/// what passes between them stored in the dtype, as an unfused implementation in that dtype does.
///
///   forward    residual_out = x + residual;  rstd;  x̂ = h · rstd;  out = x̂ · weight;
///              absmax of out;  out_q
///   backward   rstd;  x̂;  g = dout · weight;  mean(g · x̂);  dx;  product = dout · x̂;
///              column sums of the product;  dx + dresidual_out
namespace katt::rmsnorm::impl {

template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& exec, const ForwardArgs& args);
template <class Exec, class T>
std::size_t naive_workspace_bytes(const Exec& exec, const BackwardArgs& args);

template <class Exec, class T>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace);
template <class Exec, class T>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace);

}  // namespace katt::rmsnorm::impl
