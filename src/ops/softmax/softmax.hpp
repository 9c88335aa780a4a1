#pragma once

#include <cstddef>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// Softmax of the rows of a matrix:
///
///   out(t, ·) = exp(x(t, ·) − lse(t)),  lse(t) = log Σ_v exp x(t, v)
///   dx = out ⊙ (dout − Σ_v dout·out)
///
/// The backward pass computes out again from x: that reads as much as reading out would, and frees
/// the caller from keeping it.
namespace katt::softmax {

/// Arguments of the forward pass, in the memory of the backend and of one dtype; rows may be any
/// distance apart.
struct ForwardArgs {
  ConstTensorRef<2> x;  ///< (tokens, vocab)
  TensorRef<2> out;     ///< (tokens, vocab); may be the memory of x
};

/// Arguments of the backward pass.
struct BackwardArgs {
  ConstTensorRef<2> x;     ///< (tokens, vocab)
  ConstTensorRef<2> dout;  ///< (tokens, vocab)
  TensorRef<2> dx;         ///< (tokens, vocab); may be the memory of x or dout
};

/// The variants of an execution space: "naive" (a launch for each step, what is between them
/// stored) and "fused" (one launch, rows stay in cache; stores past the caches where the output is larger).
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same for the backward pass.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes or dtypes of the arguments do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Launches the pass on the execution space instance and returns without waiting for it. The bits
/// of the result do not depend on the number of threads. Throws InputError for arguments that
/// check() refuses, an unknown variant, and a workspace smaller than the table's workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// Operations: 5 an element forward (compare, subtract, exponential, add, multiply), 8 backward.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: inputs read once, the result written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::softmax
