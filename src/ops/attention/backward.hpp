#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"
#include "ops/attention/attention.hpp"

/// Gradients of attention (Dao et al. 2022, FlashAttention, arXiv:2205.14135, appendix B.2): with
/// P(i, j) = exp(S(i, j) − lse(i)) and Δ(i) = Σ_d dout(i, d) · out(i, d),
///
///   dV = Pᵀ·dout,  dP = dout·Vᵀ,  dS = P ∘ (dP − Δ + dlse) ∘ r′(S)
///   dQ = scale · dS·K,  dK = scale · dSᵀ·Q,  dmask = Σ P ∘ (dP − Δ + dlse)
///
/// with r′ the slope of the score rule at the scores before it, 1 without a rule. dK and dV of a
/// key/value head are sums over the query heads that share it, dmask over the batch entries and heads
/// that the mask is broadcast to. The order of every sum depends only
/// on the shapes: two runs give the same bits, for any number of threads.
namespace katt::attention {

/// Arguments of the backward pass; dtypes, memory and strides as in ForwardArgs. `out` and `lse`
/// are those of the forward pass.
struct BackwardArgs {
  ConstTensorRef<4> q, k, v;  ///< of the shapes of ForwardArgs
  ConstTensorRef<4> out;      ///< (batch, heads, seq_q, head_dim)
  ConstTensorRef<4> dout;     ///< (batch, heads, seq_q, head_dim)
  ConstTensorRef<3> lse;      ///< (batch, heads, seq_q) f32, natural logarithm
  TensorRef<4> dq;            ///< (batch, heads, seq_q, head_dim)
  TensorRef<4> dk, dv;        ///< (batch, kv_heads, seq_kv, head_dim)
  /// Gradient of the bias of `mask`, of its shape and dtype: 0 where a score is hidden. Left out, it
  /// is not computed. Hosts alone compute it, in a pass of its own after that of any variant of this
  /// library; a variant that a program adds must write it, or refuse.
  TensorRef<4> dmask{};
  float scale = 0.0F;  ///< factor of Q·Kᵀ, as in ForwardArgs
  ScoreArgs score{};   ///< as in ForwardArgs
  MaskArgs mask{};     ///< as in ForwardArgs
  /// (batch, heads, seq_q) f32: gradient of lse, 0 where it is missing. Hosts alone read it.
  ConstTensorRef<3> dlse{};

  std::int64_t batch() const { return q.extent[0]; }     ///< sequences
  std::int64_t heads() const { return q.extent[1]; }     ///< query heads
  std::int64_t kv_heads() const { return k.extent[1]; }  ///< key/value heads
  std::int64_t seq_q() const { return q.extent[2]; }     ///< queries of a sequence
  std::int64_t seq_kv() const { return k.extent[2]; }    ///< keys of a sequence
  std::int64_t head_dim() const { return q.extent[3]; }  ///< elements of a head
};

/// The backward variants of an execution space; the first is "naive".
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes, strides, dtypes or mask of the arguments do not fit together.
void check(const BackwardArgs& args);
/// Throws InputError when the lengths of the keys, which the host can read here, are none.
void check_values(const BackwardArgs& args);

/// Bytes of workspace that backward() needs. Throws like backward().
template <class Exec>
[[nodiscard]] std::size_t workspace_bytes(const Exec& exec, const BackwardArgs& args,
                                          const Config& config);

/// Launches the backward pass and returns without waiting for it; refusals and errors as forward().
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// FLOPs of the backward pass: five products of 2 · head_dim for every visible pair, 2.5 times the
/// forward pass. The masks must be readable on the host.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic of the backward pass in bytes: every input read once, every gradient written once.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::attention
