#pragma once

#include <array>
#include <cstdint>

#include "nn/arena.hpp"
#include "nn/config.hpp"
#include "nn/model/multi_head_attention.hpp"
#include "nn/parameters.hpp"
#include "nn/runner.hpp"
#include "nn/stream_rows.hpp"

/// One block of a LLaMA, as a sequence of operators. With T = batch · seq tokens:
///
///   n₁ = rmsnorm(x)          | x (T, hidden)
///   q, k, v = n₁·W_qkvᵀ      | qkv (T, q_size + 2·kv_size); q and k turned by rope in place
///   a = attention(q, k, v)   | attended (T, q_size)
///   h = x + a·W_oᵀ           | (T, hidden)
///   n₂ = rmsnorm(h)          | (T, hidden)
///   g, u = n₂·W_gate_upᵀ     | gate_up (T, 2·intermediate)
///   m = silu(g)·u            | product (T, intermediate); see parts_of_forward()
///   delta = m·W_downᵀ        | the next block's x is h + delta, added by its first norm
///
/// A tensor parallel rank has some of the heads and of the MLP's columns (`config` and weights
/// describe its part). The ranks sum the results of W_o and W_down, and, in the backward pass, the
/// gradients of n₁ and n₂. When they also share the rows of the stream (stream_rows.hpp), x, n₁, h,
/// n₂ and delta have a rank's rows in place of T, and gradients of the norms' weights are parts.
namespace katt::nn {

/// The tensors that a block writes, in the dtype of the model.
struct BlockActivations : AttentionActivations {
  TensorRef<2> x;
  TensorRef<2> n1;
  TensorRef<2> h;
  TensorRef<2> n2;
  TensorRef<2> gate_up;
  TensorRef<2> product;  ///< m
  StreamRows rows{};     ///< holds the rows of all ranks for a time

  TensorRef<2> gate() const { return columns(gate_up, 0, product.extent[1]); }
  TensorRef<2> up() const { return columns(gate_up, product.extent[1], product.extent[1]); }
};

/// Memory that no block keeps: all that the backward pass needs beside the activations.
struct BackwardBuffers : AttentionBuffers {
  TensorRef<2> g;           ///< as x: gradient of the residual stream
  TensorRef<2> dgate_up{};  ///< as gate_up; empty: uses its place, "fused"
};

/// A set of the tensors that a block writes after x: it does not keep them for its backward pass,
/// but computes them again.
enum class Recompute : std::uint8_t {
  nothing = 0,
  n1 = 1U << 0U,
  qkv = 1U << 1U,
  attended = 1U << 2U,  ///< with lse
  h = 1U << 3U,         ///< with n₂, which the same kernel writes
  n2 = 1U << 4U,
  gate_up = 1U << 5U,
  product = 1U << 6U,
  cheap = n1 | n2 | product,  ///< tensors that cost no product
  all = cheap | qkv | attended | h | gate_up
};

/// The tensors that a block can compute again, in the order of their computation.
inline constexpr std::array recomputable{Recompute::n1,     Recompute::qkv, Recompute::attended,
                                         Recompute::h,      Recompute::n2,  Recompute::gate_up,
                                         Recompute::product};

[[nodiscard]] constexpr Recompute operator|(Recompute a, Recompute b) {
  return static_cast<Recompute>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
[[nodiscard]] constexpr Recompute operator&(Recompute a, Recompute b) {
  return static_cast<Recompute>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
[[nodiscard]] constexpr Recompute without(Recompute set, Recompute part) {
  return static_cast<Recompute>(static_cast<unsigned>(set) & ~static_cast<unsigned>(part));
}
[[nodiscard]] constexpr bool has(Recompute set, Recompute part) {
  return (set & part) != Recompute::nothing;
}

/// Takes memory for the tensors of the set, in the dtype, for a block over `tokens` tokens; `rows`
/// is this rank's number of rows of the stream, 0: all.
void lay_out_block(Arena& arena, const LlamaConfig& config, Dtype dtype, BatchShape shape,
                   Recompute parts, BlockActivations& at, std::int64_t stream_rows = 0);

/// Up to this many tokens, products wait for the weights.
inline constexpr std::int64_t few_tokens = 64;

/// The tensors that a block needs when nobody reads g and u again: all, or all but gate_up. Without
/// gate_up it computes m as one product with W_gate_up (a gated one, ops/linear/gemm/gemm.hpp),
/// with the same bits. It does so on a host for more than few_tokens tokens, without biases,
/// ternary weights and other requested variants; few tokens read W_gate_up best as one stream.
template <class Exec>
[[nodiscard]] Recompute parts_of_forward(const LlamaConfig& config, const Kernels& kernels,
                                         std::int64_t tokens);

template <class Exec>
class Block {
 public:
  /// `cos_sin`: the table of rope::build_cache.
  Block(const LlamaConfig& config, const Kernels& kernels, ConstTensorRef<2> cos_sin)
      : config_(config),
        kernels_(kernels),
        attention_({.heads = config.num_attention_heads,
                    .kv_heads = config.num_key_value_heads,
                    .head_dim = config.head_dim},
                   kernels, cos_sin) {}

  /// x = stream + delta (the stream of the block before; an empty delta adds nothing) and n₁, then
  /// all else up to `delta`, which may be the delta of the block before.
  void forward(Runner<Exec>& run, const BlockWeights& weights, const BlockActivations& at,
               BatchShape shape, ConstTensorRef<2> stream, const TensorRef<2>& delta) const;

  /// The parts of forward() before and after attention().attend(), for callers that attend to more
  /// keys than the batch's own.
  void norm_and_project(Runner<Exec>& run, const BlockWeights& weights, const BlockActivations& at,
                        BatchShape shape, Positions positions, ConstTensorRef<2> stream,
                        ConstTensorRef<2> delta) const;
  void finish(Runner<Exec>& run, const BlockWeights& weights, const BlockActivations& at,
              const TensorRef<2>& delta) const;

  [[nodiscard]] const MultiHeadAttention<Exec>& attention() const { return attention_; }

  /// Computes the dropped tensors again: the same operators in the order of forward(), so the bits
  /// are the same. `scratch`: as x.
  void recompute(Runner<Exec>& run, const BlockWeights& weights, const BlockActivations& at,
                 BatchShape shape, Recompute what, const TensorRef<2>& scratch) const;

  /// Turns the gradient of the stream after the block, buffers.g, into the one before it, in place,
  /// and adds the gradients of the weights to `gradients` (f32). Overwrites activations.
  void backward(Runner<Exec>& run, const BlockWeights& weights, const BlockWeights& gradients,
                const BlockActivations& at, BatchShape shape, const BackwardBuffers& buffers) const;

 private:
  void norm(Runner<Exec>& run, const TensorRef<1>& weight, ConstTensorRef<2> stream,
            ConstTensorRef<2> delta, const TensorRef<2>& sum, const TensorRef<2>& out) const;
  void activate(Runner<Exec>& run, const BlockActivations& at) const;
  void gated_mlp(Runner<Exec>& run, const BlockWeights& weights, const BlockActivations& at) const;

  const LlamaConfig& config_;
  const Kernels& kernels_;
  MultiHeadAttention<Exec> attention_;
};

/// Gradients of a norm: dx = gradient of its input + dresidual; adds to dweight (f32).
template <class Exec>
void norm_backward(Runner<Exec>& run, const Kernels& kernels, float eps, const TensorRef<2>& dout,
                   const TensorRef<2>& x, const TensorRef<1>& weight, ConstTensorRef<2> dresidual,
                   const TensorRef<2>& dx, const TensorRef<1>& dweight,
                   const TensorRef<2>& staging);

}  // namespace katt::nn
