#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// The activation of SwiGLU (Shazeer 2020, arXiv:2002.05202, eq. 6), element by element:
///
///   out = silu(gate) · up,   silu(g) = g · σ(g),   σ(g) = 1 / (1 + e^−g)
///   dgate = dout · up · σ(g) · (1 + g · (1 − σ(g))),   dup = dout · silu(gate)
///
/// The arithmetic is f32 whatever the dtype, with exponentials and quotients as exact as the dtype
/// needs (relative errors of 2^-23 for f32, 2^-18 for f16, 2^-14 for bf16); every output is rounded
/// once. Finite inputs of any size give no NaN.
namespace katt::swiglu {

/// Arguments of the forward pass. Tensors share one dtype and lie in the memory of the backend;
/// rows are contiguous and may be any distance apart.
struct ForwardArgs {
  ConstTensorRef<2> gate;  ///< (tokens, intermediate)
  ConstTensorRef<2> up;    ///< (tokens, intermediate)
  TensorRef<2> out;        ///< (tokens, intermediate); may be gate or up itself

  std::int64_t tokens() const { return gate.extent[0]; }        ///< rows
  std::int64_t intermediate() const { return gate.extent[1]; }  ///< columns of gate and up
};

/// Arguments of the backward pass. With "fused" an output may be one of the inputs.
struct BackwardArgs {
  ConstTensorRef<2> gate;  ///< (tokens, intermediate)
  ConstTensorRef<2> up;    ///< (tokens, intermediate)
  ConstTensorRef<2> dout;  ///< (tokens, intermediate)
  TensorRef<2> dgate;      ///< (tokens, intermediate)
  TensorRef<2> dup;        ///< (tokens, intermediate)

  std::int64_t tokens() const { return gate.extent[0]; }        ///< rows
  std::int64_t intermediate() const { return gate.extent[1]; }  ///< columns of gate and up
};

/// The forward variants of an execution space; the first is "naive".
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();

/// The backward variants of an execution space; the first is "naive".
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when shapes or dtypes do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Launches the forward pass on the execution space instance and returns without waiting for it.
/// Returns skipped with the reason, and launches nothing, when the variant cannot run these
/// arguments. Throws InputError for arguments that check() refuses, an unknown variant, and a
/// workspace smaller than forward_variants<Exec>().workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);

/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// FLOPs an element, the exponential and the division counted as one each: forward 5, backward 11.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: every input read once, every output written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::swiglu
