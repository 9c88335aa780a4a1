#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor.hpp"
#include "core/variants.hpp"
#include "ops/attention/attention.hpp"

/// The multi-head attention layer of a transformer (Vaswani et al. 2017, arXiv:1706.03762, section
/// 3.2.2), with grouped heads and rotary positions: a composition of linear, rope and attention.
///
///   [Q | K | V] = x · w_qkvᵀ + b_qkv    (batch·seq, (heads + 2·kv_heads)·head_dim), split by views
///   Q, K        ← rope(Q), rope(K)      in place, where a cache of angles is given
///   attended    = attention(Q, K, V)    (batch, heads, seq, head_dim),
///                                       stored (batch·seq, heads·head_dim)
///   out         = attended · w_outᵀ + b_out
namespace katt::nn {

struct MultiHeadAttentionShape {
  std::int64_t batch = 1;
  std::int64_t seq = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  Dtype dtype = Dtype::f32;

  std::int64_t tokens() const { return batch * seq; }
  std::int64_t qkv_features() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t attended_features() const { return heads * head_dim; }
};

/// Weights of the layer, or their gradients. Rows of w_qkv: those of Q's heads, then K's, then V's.
template <bool Const>
struct MultiHeadAttentionWeights {
  BasicTensorRef<2, Const> w_qkv;    ///< (qkv_features, hidden)
  BasicTensorRef<1, Const> b_qkv{};  ///< (qkv_features); optional
  BasicTensorRef<2, Const> w_out;    ///< (hidden, attended_features)
  BasicTensorRef<1, Const> b_out{};  ///< (hidden); optional
};

/// What the forward pass leaves for the backward pass.
struct MultiHeadAttentionState {
  TensorRef<2> qkv;       ///< (tokens, qkv_features), Q and K after rope
  TensorRef<2> attended;  ///< (tokens, attended_features)
  TensorRef<3> lse;       ///< (batch, heads, seq) f32
};

/// Arguments of both passes, in the memory of the backend and of the dtype of the shape.
struct MultiHeadAttentionArgs {
  MultiHeadAttentionShape shape;
  ConstTensorRef<2> x;  ///< (tokens, hidden)
  MultiHeadAttentionWeights<true> weights;
  MultiHeadAttentionState state;
  /// (rows, head_dim) f32 of rope::build_cache(); empty: no rotary positions
  ConstTensorRef<2> rope_cache{};
  const std::int64_t* positions = nullptr;  ///< (batch, seq), as in rope::ForwardArgs
  bool rope_interleaved = false;
  float scale = 0.0F;  ///< of the scores, usually 1 / √head_dim
  attention::MaskArgs mask{};
};

/// Variants of the parts. The naive layer is {{"naive"}, {"naive"}, {"naive"}}.
struct MultiHeadAttentionConfig {
  Config linear{};
  Config rope{};
  Config attention{};
};

/// Bytes of workspace of the passes; shapes are read, tensors are not.
template <class Exec>
[[nodiscard]] std::size_t forward_workspace_bytes(const Exec& exec,
                                                  const MultiHeadAttentionArgs& args,
                                                  const MultiHeadAttentionConfig& config);
template <class Exec>
[[nodiscard]] std::size_t backward_workspace_bytes(const Exec& exec,
                                                   const MultiHeadAttentionArgs& args,
                                                   const MultiHeadAttentionConfig& config);

/// Launches the forward pass and returns without waiting for it: writes out (tokens, hidden) and
/// args.state. Throws InputError where shapes or dtypes do not fit together, a variant is unknown
/// or refuses the arguments, and for a workspace that is too small.
template <class Exec>
void forward(const Exec& exec, const MultiHeadAttentionArgs& args, const TensorRef<2>& out,
             const MultiHeadAttentionConfig& config, Workspace workspace);

/// The backward pass: from dout (tokens, hidden) and the state that forward() left, dx (tokens,
/// hidden) and the gradients of the weights; those left out are not computed. The bits do not
/// depend on the number of threads. Throws like forward().
template <class Exec>
void backward(const Exec& exec, const MultiHeadAttentionArgs& args, const ConstTensorRef<2>& dout,
              const TensorRef<2>& dx, const MultiHeadAttentionWeights<false>& gradients,
              const MultiHeadAttentionConfig& config, Workspace workspace);

}  // namespace katt::nn
