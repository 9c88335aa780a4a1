#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// The feed-forward layer of LLaMA (SwiGLU; Shazeer 2020, arXiv:2002.05202, eq. 6):
///
///   gate = x · w_gateᵀ,   up = x · w_upᵀ,   h = silu(gate) · up,   out = h · w_downᵀ
///
/// and backward, gate and up computed again:
///
///   dh = dout · w_down,   dgate = dh · up · silu′(gate),   dup = dh · silu(gate)
///   dx = dgate · w_gate + dup · w_up
///   dw_gate = dgateᵀ · x,   dw_up = dupᵀ · x,   dw_down = doutᵀ · h
///
/// Products and sums are f32 whatever the dtype.
namespace katt::swiglu_mlp {

/// Arguments of the forward pass. Tensors share one dtype and lie in the memory of the backend;
/// rows are contiguous and may be any distance apart.
struct ForwardArgs {
  ConstTensorRef<2> x;       ///< (tokens, hidden)
  ConstTensorRef<2> w_gate;  ///< (intermediate, hidden)
  ConstTensorRef<2> w_up;    ///< (intermediate, hidden)
  ConstTensorRef<2> w_down;  ///< (hidden, intermediate)
  TensorRef<2> out;          ///< (tokens, hidden)

  std::int64_t tokens() const { return x.extent[0]; }             ///< rows
  std::int64_t hidden() const { return x.extent[1]; }             ///< elements of a row
  std::int64_t intermediate() const { return w_gate.extent[0]; }  ///< columns of gate and up
};

/// Arguments of the backward pass; gradients have the shapes of their inputs.
struct BackwardArgs {
  ConstTensorRef<2> x;       ///< (tokens, hidden)
  ConstTensorRef<2> w_gate;  ///< (intermediate, hidden)
  ConstTensorRef<2> w_up;    ///< (intermediate, hidden)
  ConstTensorRef<2> w_down;  ///< (hidden, intermediate)
  ConstTensorRef<2> dout;    ///< (tokens, hidden)
  TensorRef<2> dx;           ///< (tokens, hidden)
  TensorRef<2> dw_gate;      ///< (intermediate, hidden)
  TensorRef<2> dw_up;        ///< (intermediate, hidden)
  TensorRef<2> dw_down;      ///< (hidden, intermediate)

  std::int64_t tokens() const { return x.extent[0]; }             ///< rows
  std::int64_t hidden() const { return x.extent[1]; }             ///< elements of a row
  std::int64_t intermediate() const { return w_gate.extent[0]; }  ///< columns of gate and up
};

/// The forward variants of an execution space; the first is "naive". A tile is tokens ×
/// intermediate columns: the block of gate and up that exists at one time.
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
/// arguments with this tile. Throws InputError for arguments that check() refuses, an unknown
/// variant, and a workspace smaller than forward_variants<Exec>().workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);

/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// FLOPs of the matrix products, 2 · tokens · hidden · intermediate each: three forward, eight
/// backward (gate and up are computed again); the activation is not counted.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: every input read once, every output written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::swiglu_mlp
