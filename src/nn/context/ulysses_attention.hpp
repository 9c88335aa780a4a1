#pragma once

#include <cstdint>

#include "nn/arena.hpp"
#include "nn/context/ring_schedule.hpp"
#include "nn/runner.hpp"
#include "ops/attention/attention.hpp"

/// Attention of sequences that several ranks share, by heads (DeepSpeed-Ulysses, Jacobs et al.
/// 2023, arXiv:2309.14509): ranks that have some tokens of all heads exchange them for all tokens
/// of some heads, attend to these as one rank does, and exchange the outputs back:
///
///   q, k, v (own tokens, all heads) → all_to_all → attention (all tokens, heads / C) → all_to_all → out
///
/// Every mask is that of one rank, since each rank has whole sequences. The tokens of a rank are
/// those of ring attention (ZigzagRows), so both variants hold the same. The backward pass
/// exchanges q, k, v and out again, so between the passes a rank keeps them once, in its own
/// tokens.
namespace katt::nn {

/// Shapes of whole sequences; the ranks divide both numbers of heads.
struct UlyssesShape {
  std::int64_t batch = 0, seq_q = 0, seq_kv = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int ranks = 1, rank = 0;

  [[nodiscard]] std::int64_t own_heads() const { return heads / ranks; }
  [[nodiscard]] std::int64_t own_kv_heads() const { return kv_heads / ranks; }
  [[nodiscard]] ZigzagRows queries() const { return {seq_q, ranks, rank}; }
  [[nodiscard]] ZigzagRows keys() const { return {seq_kv, ranks, rank}; }
};

/// Shapes of self-attention in a layout, with `seq` own tokens of each sequence.
[[nodiscard]] inline UlyssesShape ulysses_shape_of(std::int64_t heads, std::int64_t kv_heads,
                                                   std::int64_t head_dim, std::int64_t batch,
                                                   std::int64_t seq, const ranks::Place& place) {
  const std::int64_t whole = seq * place.layout.context;
  return {batch, whole, whole, heads, kv_heads, head_dim, place.layout.context, place.context};
}

/// Memory of both passes: tokens in transit, and all tokens of the own heads.
struct UlyssesBuffers {
  TensorRef<1> sent, received;
  TensorRef<2> q, out, dout, dq;  ///< (batch · seq_q, heads / C · head_dim)
  TensorRef<2> kv, dkv;           ///< (batch · seq_kv, 2 · kv_heads / C · head_dim)
};

[[nodiscard]] UlyssesBuffers lay_out_ulysses(Arena& arena, Dtype dtype, const UlyssesShape& shape,
                                             bool backward);

/// The options of attention beside its tensors; tables, slopes and bias belong to whole sequences
/// and the own heads.
struct UlyssesRule {
  attention::ScoreArgs score{};
  attention::MaskArgs mask{.causal = true};
};

/// Rows as in RingForwardArgs, except lse: (batch, heads / C, seq_q) f32, of all tokens and the own
/// heads.
template <class Exec>
void ulysses_forward(Runner<Exec>& run, const Kernels& kernels, const UlyssesShape& shape,
                     const RingForwardArgs& args, const UlyssesRule& rule,
                     const UlyssesBuffers& buffers);
template <class Exec>
void ulysses_backward(Runner<Exec>& run, const Kernels& kernels, const UlyssesShape& shape,
                      const RingBackwardArgs& args, const UlyssesRule& rule,
                      const UlyssesBuffers& buffers);

}  // namespace katt::nn
