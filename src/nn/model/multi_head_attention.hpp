#pragma once

#include <cstdint>

#include "nn/context/ring_attention.hpp"
#include "nn/context/ulysses_attention.hpp"
#include "nn/parameters.hpp"
#include "nn/runner.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/decode/paged.hpp"

/// The multi-head attention layer of a transformer (Vaswani et al. 2017, arXiv:1706.03762, section
/// 3.2.2), with grouped heads and rotary positions: a composition of linear, rope and attention.
/// With T = batch · seq tokens:
///
///   [q | k | v] = x · W_qkvᵀ + b_qkv    (T, q_size + 2·kv_size), split by views
///   q, k        ← rope(q), rope(k)      in place, where there is a table of angles
///   attended    = attention(q, k, v)    (T, q_size)
///   out         = attended · W_oᵀ + b_o
namespace katt::nn {

/// Shape of a batch of token rows.
struct BatchShape {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  [[nodiscard]] std::int64_t tokens() const { return batch * seq; }
};

/// The positions of a batch's tokens in their sequences, for rope: as in rope::ForwardArgs.
struct Positions {
  std::int64_t first = 0;              ///< first position of every sequence
  const std::int64_t* each = nullptr;  ///< (batch, seq), in the memory of the backend; null: none
};

struct MultiHeadAttentionConfig {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< divides heads
  std::int64_t head_dim = 0;
  attention::MaskArgs mask{.causal = true};

  [[nodiscard]] std::int64_t q_size() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t kv_size() const { return kv_heads * head_dim; }
  [[nodiscard]] std::int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

/// The tensors that the layer writes, in the dtype of the model.
struct AttentionActivations {
  TensorRef<2> qkv;          ///< (T, q_size + 2·kv_size), q and k after rope
  TensorRef<2> attended;     ///< (T, q_size)
  TensorRef<3> lse{};        ///< (batch, heads, seq) f32; empty when no backward pass follows
  RingBuffers ring{};        ///< when the runner's ranks share sequences by a ring
  UlyssesBuffers ulysses{};  ///< or by heads: lse then has all tokens and this rank's heads
};

/// Memory of its backward pass beside the activations.
struct AttentionBuffers {
  TensorRef<2> dqkv;       ///< as qkv
  TensorRef<2> dattended;  ///< as attended
  TensorRef<2> staging;    ///< dtype of the model: gradients before their sum in f32
};

/// Where the runner's ranks share sequences, attend_own() and attend_backward() are ring attention, or
/// attention by heads (ulysses_attention.hpp), as the layout says.
/// Both passes launch operators of `kernels` and return; what cannot run here is an InputError.
template <class Exec>
class MultiHeadAttention {
 public:
  /// `cos_sin`: the table of rope::build_cache; empty: no rotary positions. `kernels` must outlive
  /// the layer.
  MultiHeadAttention(const MultiHeadAttentionConfig& config, const Kernels& kernels,
                     ConstTensorRef<2> cos_sin);

  /// The steps of the forward pass, from x (T, hidden) to out (T, hidden): project_in(), one of the three that
  /// attend, project_out().
  void project_in(Runner<Exec>& run, const AttentionWeights& weights, const TensorRef<2>& x,
                  const AttentionActivations& at, BatchShape shape, Positions positions) const;
  void attend(Runner<Exec>& run, const AttentionActivations& at, BatchShape shape,
              ConstTensorRef<4> keys, ConstTensorRef<4> values) const;
  void attend_own(Runner<Exec>& run, const AttentionActivations& at, BatchShape shape) const;
  /// One query a sequence, to the keys that `cache` names (its pages, block table and lengths).
  void attend_paged(Runner<Exec>& run, const AttentionActivations& at, BatchShape shape,
                    attention::PagedArgs cache) const;
  void project_out(Runner<Exec>& run, const AttentionWeights& weights,
                   const AttentionActivations& at, const TensorRef<2>& out) const;

  /// The steps of the backward pass, in this order, from dout (T, hidden) to dx (T, hidden), which may be the
  /// memory of x; they add the gradients of the weights to `gradients` (f32). dout is read by the first alone.
  void project_out_backward(Runner<Exec>& run, const AttentionWeights& weights,
                            const AttentionWeights& gradients, const AttentionActivations& at,
                            const TensorRef<2>& dout, const AttentionBuffers& buffers) const;
  void attend_backward(Runner<Exec>& run, const AttentionActivations& at, BatchShape shape,
                       const AttentionBuffers& buffers) const;
  void project_in_backward(Runner<Exec>& run, const AttentionWeights& weights,
                           const AttentionWeights& gradients, const TensorRef<2>& x,
                           const TensorRef<2>& dx, const AttentionBuffers& buffers) const;

  /// Queries of the batch within qkv: (batch, heads, seq, head_dim).
  [[nodiscard]] TensorRef<4> queries(const AttentionActivations& at, BatchShape shape) const {
    return query_heads(at.qkv, shape);
  }
  /// Keys and values of the batch within qkv: (batch, kv_heads, seq, head_dim).
  [[nodiscard]] TensorRef<4> keys(const AttentionActivations& at, BatchShape shape) const;
  [[nodiscard]] TensorRef<4> values(const AttentionActivations& at, BatchShape shape) const;

 private:
  [[nodiscard]] RingShape ring_shape(BatchShape shape) const {
    return {shape.batch, shape.seq, config_.heads, config_.kv_heads, config_.head_dim};
  }
  [[nodiscard]] UlyssesShape ulysses_shape(const ranks::Place& place, BatchShape shape) const {
    return ulysses_shape_of(config_.heads, config_.kv_heads, config_.head_dim, shape.batch,
                            shape.seq, place);
  }
  /// Columns of q, and those of k and v, of a matrix like qkv.
  [[nodiscard]] TensorRef<2> query_columns(const TensorRef<2>& qkv) const {
    return columns(qkv, 0, config_.q_size());
  }
  [[nodiscard]] TensorRef<2> key_value_columns(const TensorRef<2>& qkv) const {
    return columns(qkv, config_.q_size(), 2 * config_.kv_size());
  }
  [[nodiscard]] TensorRef<4> query_heads(const TensorRef<2>& rows, BatchShape shape) const;
  [[nodiscard]] TensorRef<4> key_heads(const TensorRef<2>& qkv, BatchShape shape) const;
  [[nodiscard]] TensorRef<4> value_heads(const TensorRef<2>& qkv, BatchShape shape) const;

  MultiHeadAttentionConfig config_;
  const Kernels& kernels_;
  ConstTensorRef<2> cos_sin_;
  float scale_;  ///< 1 / √head_dim
};

}  // namespace katt::nn
