#include "nn/block.hpp"

#include <cmath>

#include "core/execution.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/linear/linear.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rope/rope.hpp"
#include "ops/swiglu/swiglu.hpp"

namespace katt::nn {

namespace {

/// The heads of q, k and v in a (tokens, q_size + 2·kv_size) matrix.
struct Heads {
  Heads(const LlamaConfig& config, const TensorRef<2>& qkv, std::int64_t batch)
      : q(heads_of(qkv, 0, batch, config.num_attention_heads, config.head_dim)),
        k(heads_of(qkv, config.q_size(), batch, config.num_key_value_heads, config.head_dim)),
        v(heads_of(qkv, config.q_size() + config.kv_size(), batch, config.num_key_value_heads,
                   config.head_dim)) {}
  TensorRef<4> q, k, v;
};

float scale_of(const LlamaConfig& config) {
  return 1.0F / std::sqrt(static_cast<float>(config.head_dim));
}

template <class T>
struct AddGradient {
  const T* value;
  float* gradient;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    gradient[i] += static_cast<float>(value[i]);
  }
};

}  // namespace

void lay_out_block(Arena& arena, const LlamaConfig& config, Dtype dtype, BatchShape shape,
                   Recompute parts, BlockActivations& at) {
  const auto take = [&](Recompute part, TensorRef<2>& tensor, std::int64_t columns) {
    if (has(parts, part)) tensor = arena.tensor<2>(dtype, {shape.tokens(), columns});
  };
  take(Recompute::n1, at.n1, config.hidden_size);
  take(Recompute::qkv, at.qkv, config.q_size() + 2 * config.kv_size());
  take(Recompute::attended, at.attended, config.q_size());
  if (has(parts, Recompute::attended)) {
    at.lse = arena.tensor<3>(Dtype::f32, {shape.batch, config.num_attention_heads, shape.seq});
  }
  take(Recompute::h, at.h, config.hidden_size);
  take(Recompute::n2, at.n2, config.hidden_size);
  take(Recompute::gate_up, at.gate_up, 2 * config.intermediate_size);
  take(Recompute::product, at.product, config.intermediate_size);
}

template <class Exec>
void Block<Exec>::norm(Runner<Exec>& run, const TensorRef<1>& weight, ConstTensorRef<2> stream,
                       ConstTensorRef<2> delta, const TensorRef<2>& sum,
                       const TensorRef<2>& out) const {
  rmsnorm::ForwardArgs args{.x = stream, .weight = weight, .out = out, .eps = config_.rms_norm_eps};
  if (delta) {
    args.x = delta;
    args.residual = stream;
    args.residual_out = sum;
  }
  run(rmsnorm::forward_variants<Exec>(), args, kernels_.rmsnorm);
}

template <class Exec>
void Block<Exec>::project(Runner<Exec>& run, const TensorRef<2>& x, const TensorRef<2>& weight,
                          const TensorRef<1>& bias, const TensorRef<2>& out) const {
  linear::ForwardArgs args{.x = x, .weight = weight, .out = out};
  if (bias) args.bias = bias;
  run(linear::forward_variants<Exec>(), args, kernels_.linear);
}

template <class Exec>
void Block<Exec>::project_qkv(Runner<Exec>& run, const BlockWeights& weights,
                              const BlockActivations& at, BatchShape shape,
                              std::int64_t first_position) const {
  project(run, at.n1, weights.qkv, weights.qkv_bias, at.qkv);
  const Heads heads(config_, at.qkv, shape.batch);
  const rope::ForwardArgs args{.x = heads.q,
                               .out = heads.q,
                               .x2 = heads.k,
                               .out2 = heads.k,
                               .cache = cos_sin_,
                               .first_position = first_position};
  run(rope::forward_variants<Exec>(), args, kernels_.rope);
}

template <class Exec>
void Block<Exec>::norm_and_project(Runner<Exec>& run, const BlockWeights& weights,
                                   const BlockActivations& at, BatchShape shape,
                                   std::int64_t first_position, ConstTensorRef<2> stream,
                                   ConstTensorRef<2> delta) const {
  norm(run, weights.input_norm, stream, delta, at.x, at.n1);
  project_qkv(run, weights, at, shape, first_position);
}

template <class Exec>
void Block<Exec>::attend(Runner<Exec>& run, const BlockActivations& at, BatchShape shape,
                         ConstTensorRef<4> keys, ConstTensorRef<4> values) const {
  const attention::ForwardArgs args{
      .q = heads_of(at.qkv, 0, shape.batch, config_.num_attention_heads, config_.head_dim),
      .k = keys,
      .v = values,
      .out = heads_of(at.attended, 0, shape.batch, config_.num_attention_heads, config_.head_dim),
      .lse = at.lse,
      .scale = scale_of(config_),
      .mask = {.causal = true}};
  run(attention::forward_variants<Exec>(), args, kernels_.attention);
}

template <class Exec>
void Block<Exec>::attend_own(Runner<Exec>& run, const BlockActivations& at,
                             BatchShape shape) const {
  const Heads heads(config_, at.qkv, shape.batch);
  attend(run, at, shape, heads.k, heads.v);
}

template <class Exec>
void Block<Exec>::activate(Runner<Exec>& run, const BlockActivations& at) const {
  run(swiglu::forward_variants<Exec>(),
      swiglu::ForwardArgs{.gate = at.gate(), .up = at.up(), .out = at.product}, kernels_.swiglu);
}

template <class Exec>
void Block<Exec>::finish(Runner<Exec>& run, const BlockWeights& weights, const BlockActivations& at,
                         const TensorRef<2>& delta) const {
  project(run, at.attended, weights.o, weights.o_bias, delta);
  norm(run, weights.post_norm, at.x, delta, at.h, at.n2);
  project(run, at.n2, weights.gate_up, weights.gate_up_bias, at.gate_up);
  activate(run, at);
  project(run, at.product, weights.down, weights.down_bias, delta);
}

template <class Exec>
void Block<Exec>::forward(Runner<Exec>& run, const BlockWeights& weights,
                          const BlockActivations& at, BatchShape shape, ConstTensorRef<2> stream,
                          const TensorRef<2>& delta) const {
  const bool is_first = stream.data == at.x.data;  // nothing to add yet
  norm_and_project(run, weights, at, shape, 0, stream,
                   is_first ? ConstTensorRef<2>() : ConstTensorRef<2>(delta));
  attend_own(run, at, shape);
  finish(run, weights, at, delta);
}

template <class Exec>
void Block<Exec>::recompute(Runner<Exec>& run, const BlockWeights& weights,
                            const BlockActivations& at, BatchShape shape, Recompute what,
                            const TensorRef<2>& scratch) const {
  if (has(what, Recompute::n1)) norm(run, weights.input_norm, at.x, {}, {}, at.n1);
  if (has(what, Recompute::qkv)) project_qkv(run, weights, at, shape, 0);
  if (has(what, Recompute::attended)) attend_own(run, at, shape);
  if (has(what, Recompute::h)) {
    project(run, at.attended, weights.o, weights.o_bias, scratch);
    norm(run, weights.post_norm, at.x, scratch, at.h, at.n2);
  } else if (has(what, Recompute::n2)) {
    norm(run, weights.post_norm, at.h, {}, {}, at.n2);
  }
  if (has(what, Recompute::gate_up)) {
    project(run, at.n2, weights.gate_up, weights.gate_up_bias, at.gate_up);
  }
  if (has(what, Recompute::product)) activate(run, at);
}

template <class Exec>
void Block<Exec>::attend_backward(Runner<Exec>& run, const BlockActivations& at, BatchShape shape,
                                  const BackwardBuffers& buffers) const {
  const Heads in(config_, at.qkv, shape.batch);
  const Heads d(config_, buffers.dqkv, shape.batch);
  const auto heads = [&](const TensorRef<2>& rows) {
    return heads_of(rows, 0, shape.batch, config_.num_attention_heads, config_.head_dim);
  };
  const attention::BackwardArgs args{.q = in.q,
                                     .k = in.k,
                                     .v = in.v,
                                     .out = heads(at.attended),
                                     .dout = heads(buffers.dattended),
                                     .lse = at.lse,
                                     .dq = d.q,
                                     .dk = d.k,
                                     .dv = d.v,
                                     .scale = scale_of(config_),
                                     .mask = {.causal = true}};
  run(attention::backward_variants<Exec>(), args, kernels_.attention);
  const rope::BackwardArgs turned{
      .dout = d.q, .dx = d.q, .dout2 = d.k, .dx2 = d.k, .cache = cos_sin_};
  run(rope::backward_variants<Exec>(), turned, kernels_.rope);
}

template <class Exec>
void Block<Exec>::backward(Runner<Exec>& run, const BlockWeights& weights,
                           const BlockWeights& gradients, const BlockActivations& at,
                           BatchShape shape, const BackwardBuffers& buffers) const {
  const auto through = [&](const TensorRef<2>& x, const TensorRef<2>& weight,
                           const TensorRef<2>& dout, const TensorRef<2>& dx,
                           const TensorRef<2>& dweight, const TensorRef<1>& dbias) {
    // dx may be the memory of x: the gradients of the weight, which read x, come first.
    add_linear_gradients(run, kernels_, x, dout, dweight, dbias, buffers.staging);
    run(linear::backward_variants<Exec>(),
        linear::BackwardArgs{.x = x, .weight = weight, .dout = dout, .dx = dx}, kernels_.linear);
  };
  const TensorRef<2>& g = buffers.g;
  const TensorRef<2> dgate_up = buffers.dgate_up ? buffers.dgate_up : at.gate_up;
  const std::int64_t half = at.product.extent[1];
  through(at.product, weights.down, g, at.product, gradients.down, gradients.down_bias);
  run(swiglu::backward_variants<Exec>(),
      swiglu::BackwardArgs{.gate = at.gate(),
                           .up = at.up(),
                           .dout = at.product,
                           .dgate = columns(dgate_up, 0, half),
                           .dup = columns(dgate_up, half, half)},
      kernels_.swiglu);
  through(at.n2, weights.gate_up, dgate_up, at.n2, gradients.gate_up, gradients.gate_up_bias);
  norm_backward(run, kernels_, config_.rms_norm_eps, at.n2, at.h, weights.post_norm, g, g,
                gradients.post_norm, buffers.staging);
  through(at.attended, weights.o, g, buffers.dattended, gradients.o, gradients.o_bias);
  attend_backward(run, at, shape, buffers);
  through(at.n1, weights.qkv, buffers.dqkv, at.n1, gradients.qkv, gradients.qkv_bias);
  norm_backward(run, kernels_, config_.rms_norm_eps, at.n1, at.x, weights.input_norm, g, g,
                gradients.input_norm, buffers.staging);
}

template <class Exec>
void add_gradient(Runner<Exec>& run, const void* value, Dtype dtype, void* gradient,
                  std::int64_t count) {
  if (run.is_dry()) return;
  visit_dtype(dtype, [&]<class T>() {
    Kokkos::parallel_for(
        "katt::nn::add_gradient",
        Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(run.exec(), 0, count),
        AddGradient<T>{static_cast<const T*>(value), static_cast<float*>(gradient)});
  });
}

template <class Exec>
void add_linear_gradients(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& x,
                          const TensorRef<2>& dout, const TensorRef<2>& dweight,
                          const TensorRef<1>& dbias, const TensorRef<2>& staging) {
  if (kernels.products_add) {
    run.gemm({.a = dout, .b = x, .c = dweight, .trans_a = true, .beta = 1.0F},
             "katt::nn::weight_gradient");
  } else {
    const TensorRef<2> product(staging.data, dout.dtype, dweight.extent);
    run(linear::backward_variants<Exec>(),
        linear::BackwardArgs{
            .x = x, .weight = product, .dout = dout, .dweight = product},  // reads no weight
        kernels.linear);
    add_gradient(run, product.data, product.dtype, dweight.data, product.size());
  }
  if (!dbias) return;
  const TensorRef<1> sums(staging.data, dout.dtype, dbias.extent);
  run(linear::backward_variants<Exec>(),
      linear::BackwardArgs{.x = x,
                           .weight = TensorRef<2>(dweight.data, dout.dtype, dweight.extent),
                           .dout = dout,
                           .dbias = sums},
      kernels.linear);
  add_gradient(run, sums.data, sums.dtype, dbias.data, sums.size());
}

template <class Exec>
void norm_backward(Runner<Exec>& run, const Kernels& kernels, float eps, const TensorRef<2>& dout,
                   const TensorRef<2>& x, const TensorRef<1>& weight, ConstTensorRef<2> dresidual,
                   const TensorRef<2>& dx, const TensorRef<1>& dweight,
                   const TensorRef<2>& staging) {
  const TensorRef<1> sums(staging.data, x.dtype, dweight.extent);
  run(rmsnorm::backward_variants<Exec>(),
      rmsnorm::BackwardArgs{.dout = dout,
                            .x = x,
                            .weight = weight,
                            .dresidual_out = dresidual,
                            .dx = dx,
                            .dweight = sums,
                            .eps = eps},
      kernels.rmsnorm);
  add_gradient(run, sums.data, sums.dtype, dweight.data, sums.size());
}

#define KATT_INSTANTIATE_BLOCK(Exec)                                                             \
  template class Block<Exec>;                                                                    \
  template void add_gradient<Exec>(Runner<Exec>&, const void*, Dtype, void*, std::int64_t);      \
  template void add_linear_gradients<Exec>(Runner<Exec>&, const Kernels&, const TensorRef<2>&,   \
                                           const TensorRef<2>&, const TensorRef<2>&,             \
                                           const TensorRef<1>&, const TensorRef<2>&);            \
  template void norm_backward<Exec>(Runner<Exec>&, const Kernels&, float, const TensorRef<2>&,   \
                                    const TensorRef<2>&, const TensorRef<1>&, ConstTensorRef<2>, \
                                    const TensorRef<2>&, const TensorRef<1>&,                    \
                                    const TensorRef<2>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_BLOCK)

}  // namespace katt::nn
