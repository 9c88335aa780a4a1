#pragma once

#include <cstddef>

#include "op/variants.hpp"
#include "ops/rope/rope_kernels.hpp"

/// The naive variant, the baseline that speedups refer to: the unfused form of Hugging Face's
/// LLaMA, every step a kernel of its own over tensors in the dtype,
///   cos, sin   gathered from the cache for every (batch, seq), expanded to head_dim, in the dtype
///   rotated    rotate_half(x) = (−x_b, x_a), materialised
///   product    x · cos
///   rotated    rotated · sin
///   out        product + rotated
/// for one tensor after the other.
namespace katt::rope::impl {

template <class T>
std::size_t naive_workspace_bytes(const Turn& turn);

template <class Exec, class T>
void naive_turn(const Exec& exec, const Turn& turn, Workspace workspace);

}  // namespace katt::rope::impl
