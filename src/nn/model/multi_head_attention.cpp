#include "nn/model/multi_head_attention.hpp"

#include <cmath>

#include "core/execution.hpp"
#include "nn/arena.hpp"
#include "nn/products.hpp"
#include "ops/attention/backward.hpp"
#include "ops/rope/rope.hpp"

namespace katt::nn {

namespace {

/// Uses the same memory: equally many elements, of all tokens and the own heads.
TensorRef<3> lse_of_heads(const TensorRef<3>& lse, const UlyssesShape& shape) {
  return {lse.data, lse.dtype, {shape.batch, shape.own_heads(), shape.seq_q}};
}

}  // namespace

template <class Exec>
MultiHeadAttention<Exec>::MultiHeadAttention(const MultiHeadAttentionConfig& config,
                                             const Kernels& kernels, ConstTensorRef<2> cos_sin)
    : config_(config),
      kernels_(kernels),
      cos_sin_(cos_sin),
      scale_(1.0F / std::sqrt(static_cast<float>(config.head_dim))) {}

template <class Exec>
TensorRef<4> MultiHeadAttention<Exec>::query_heads(const TensorRef<2>& rows,
                                                   BatchShape shape) const {
  return heads_of(rows, 0, shape.batch, config_.heads, config_.head_dim);
}
template <class Exec>
TensorRef<4> MultiHeadAttention<Exec>::key_heads(const TensorRef<2>& qkv, BatchShape shape) const {
  return heads_of(qkv, config_.q_size(), shape.batch, config_.kv_heads, config_.head_dim);
}
template <class Exec>
TensorRef<4> MultiHeadAttention<Exec>::value_heads(const TensorRef<2>& qkv,
                                                   BatchShape shape) const {
  return heads_of(qkv, config_.q_size() + config_.kv_size(), shape.batch, config_.kv_heads,
                  config_.head_dim);
}

template <class Exec>
TensorRef<4> MultiHeadAttention<Exec>::keys(const AttentionActivations& at,
                                            BatchShape shape) const {
  return key_heads(at.qkv, shape);
}
template <class Exec>
TensorRef<4> MultiHeadAttention<Exec>::values(const AttentionActivations& at,
                                              BatchShape shape) const {
  return value_heads(at.qkv, shape);
}

template <class Exec>
void MultiHeadAttention<Exec>::project_in(Runner<Exec>& run, const AttentionWeights& weights,
                                          const TensorRef<2>& x, const AttentionActivations& at,
                                          BatchShape shape, Positions positions) const {
  project(run, kernels_, x, weights.qkv, weights.qkv_bias, at.qkv);
  if (!cos_sin_) return;
  const TensorRef<4> q = query_heads(at.qkv, shape);
  const TensorRef<4> k = key_heads(at.qkv, shape);
  const rope::ForwardArgs args{.x = q,
                               .out = q,
                               .x2 = k,
                               .out2 = k,
                               .cache = cos_sin_,
                               .positions = positions.each,
                               .first_position = positions.first};
  run(rope::forward_variants<Exec>(), args, kernels_.rope);
}

template <class Exec>
void MultiHeadAttention<Exec>::attend(Runner<Exec>& run, const AttentionActivations& at,
                                      BatchShape shape, ConstTensorRef<4> keys,
                                      ConstTensorRef<4> values) const {
  const attention::ForwardArgs args{.q = query_heads(at.qkv, shape),
                                    .k = keys,
                                    .v = values,
                                    .out = query_heads(at.attended, shape),
                                    .lse = at.lse,
                                    .scale = scale_,
                                    .mask = config_.mask,
                                    .for_backward = static_cast<bool>(at.lse)};
  run(attention::forward_variants<Exec>(), args, kernels_.attention);
}

template <class Exec>
void MultiHeadAttention<Exec>::attend_own(Runner<Exec>& run, const AttentionActivations& at,
                                          BatchShape shape) const {
  const ranks::Place& place = run.groups().place;
  if (place.layout.context > 1) {
    RingForwardArgs args{.q = query_columns(at.qkv),
                         .kv = key_value_columns(at.qkv),
                         .out = at.attended,
                         .lse = at.lse,
                         .scale = scale_,
                         .for_backward = static_cast<bool>(at.lse)};
    if (place.layout.context_variant == ranks::ContextVariant::ring) {
      return ring_forward(run, kernels_, ring_shape(shape), args, at.ring);
    }
    const UlyssesShape whole = ulysses_shape(place, shape);
    args.lse = lse_of_heads(at.lse, whole);
    return ulysses_forward(run, kernels_, whole, args, {}, at.ulysses);
  }
  attend(run, at, shape, keys(at, shape), values(at, shape));
}

template <class Exec>
void MultiHeadAttention<Exec>::attend_paged(Runner<Exec>& run, const AttentionActivations& at,
                                            BatchShape shape, attention::PagedArgs cache) const {
  cache.q = query_heads(at.qkv, shape);
  cache.out = query_heads(at.attended, shape);
  cache.lse = at.lse;
  cache.scale = scale_;
  run(attention::paged_variants<Exec>(), cache, "decode");
}

template <class Exec>
void MultiHeadAttention<Exec>::project_out(Runner<Exec>& run, const AttentionWeights& weights,
                                           const AttentionActivations& at,
                                           const TensorRef<2>& out) const {
  project(run, kernels_, at.attended, weights.o, weights.o_bias, out);
}

template <class Exec>
void MultiHeadAttention<Exec>::project_out_backward(Runner<Exec>& run,
                                                    const AttentionWeights& weights,
                                                    const AttentionWeights& gradients,
                                                    const AttentionActivations& at,
                                                    const TensorRef<2>& dout,
                                                    const AttentionBuffers& buffers) const {
  project_backward(run, kernels_, at.attended, weights.o, dout, buffers.dattended, gradients.o,
                   gradients.o_bias, buffers.staging);
}

template <class Exec>
void MultiHeadAttention<Exec>::attend_backward(Runner<Exec>& run, const AttentionActivations& at,
                                               BatchShape shape,
                                               const AttentionBuffers& buffers) const {
  const TensorRef<4> dq = query_heads(buffers.dqkv, shape);
  const TensorRef<4> dk = key_heads(buffers.dqkv, shape);
  const ranks::Place& place = run.groups().place;
  if (place.layout.context > 1) {
    RingBackwardArgs args{.q = query_columns(at.qkv),
                          .kv = key_value_columns(at.qkv),
                          .out = at.attended,
                          .dout = buffers.dattended,
                          .lse = at.lse,
                          .dq = query_columns(buffers.dqkv),
                          .dkv = key_value_columns(buffers.dqkv),
                          .scale = scale_};
    if (place.layout.context_variant == ranks::ContextVariant::ring) {
      ring_backward(run, kernels_, ring_shape(shape), args, at.ring);
    } else {
      const UlyssesShape whole = ulysses_shape(place, shape);
      args.lse = lse_of_heads(at.lse, whole);
      ulysses_backward(run, kernels_, whole, args, {}, at.ulysses);
    }
  } else {
    const attention::BackwardArgs args{.q = query_heads(at.qkv, shape),
                                       .k = keys(at, shape),
                                       .v = values(at, shape),
                                       .out = query_heads(at.attended, shape),
                                       .dout = query_heads(buffers.dattended, shape),
                                       .lse = at.lse,
                                       .dq = dq,
                                       .dk = dk,
                                       .dv = value_heads(buffers.dqkv, shape),
                                       .scale = scale_,
                                       .mask = config_.mask};
    run(attention::backward_variants<Exec>(), args, kernels_.attention);
  }
  if (cos_sin_) {
    const rope::BackwardArgs turned{
        .dout = dq, .dx = dq, .dout2 = dk, .dx2 = dk, .cache = cos_sin_};
    run(rope::backward_variants<Exec>(), turned, kernels_.rope);
  }
}

template <class Exec>
void MultiHeadAttention<Exec>::project_in_backward(Runner<Exec>& run,
                                                   const AttentionWeights& weights,
                                                   const AttentionWeights& gradients,
                                                   const TensorRef<2>& x, const TensorRef<2>& dx,
                                                   const AttentionBuffers& buffers) const {
  project_backward(run, kernels_, x, weights.qkv, buffers.dqkv, dx, gradients.qkv,
                   gradients.qkv_bias, buffers.staging);
}

#define KATT_INSTANTIATE_MULTI_HEAD_ATTENTION(Exec) template class MultiHeadAttention<Exec>;

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_MULTI_HEAD_ATTENTION)

}  // namespace katt::nn
