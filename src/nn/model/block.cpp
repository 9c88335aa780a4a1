#include "nn/model/block.hpp"

#include "core/execution.hpp"
#include "nn/products.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/swiglu/swiglu.hpp"

namespace katt::nn {

void lay_out_block(Arena& arena, const LlamaConfig& config, Dtype dtype, BatchShape shape,
                   Recompute parts, BlockActivations& at, std::int64_t stream_rows) {
  const auto take_rows = [&](Recompute part, TensorRef<2>& tensor, std::int64_t rows,
                             std::int64_t columns) {
    if (has(parts, part)) tensor = arena.tensor<2>(dtype, {rows, columns});
  };
  const auto take = [&](Recompute part, TensorRef<2>& tensor, std::int64_t columns) {
    take_rows(part, tensor, shape.tokens(), columns);
  };
  const auto take_stream = [&](Recompute part, TensorRef<2>& tensor) {
    take_rows(part, tensor, stream_rows > 0 ? stream_rows : shape.tokens(), config.hidden_size);
  };
  take_stream(Recompute::n1, at.n1);
  take(Recompute::qkv, at.qkv, config.q_size() + 2 * config.kv_size());
  take(Recompute::attended, at.attended, config.q_size());
  if (has(parts, Recompute::attended)) {
    at.lse = arena.tensor<3>(Dtype::f32, {shape.batch, config.num_attention_heads, shape.seq});
  }
  take_stream(Recompute::h, at.h);
  take_stream(Recompute::n2, at.n2);
  take(Recompute::gate_up, at.gate_up, 2 * config.intermediate_size);
  take(Recompute::product, at.product, config.intermediate_size);
}

template <class Exec>
Recompute parts_of_forward(const LlamaConfig& config, const Kernels& kernels, std::int64_t tokens) {
  const auto is_ours = [](const std::string& variant) {
    return variant == "auto" || variant == "fused";
  };
  const bool is_gated = is_host_v<Exec> && tokens > few_tokens && !config.ternary &&
                        !config.mlp_bias && is_ours(kernels.linear) && is_ours(kernels.swiglu);
  return is_gated ? without(Recompute::all, Recompute::gate_up) : Recompute::all;
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
void Block<Exec>::norm_and_project(Runner<Exec>& run, const BlockWeights& weights,
                                   const BlockActivations& at, BatchShape shape,
                                   Positions positions, ConstTensorRef<2> stream,
                                   ConstTensorRef<2> delta) const {
  norm(run, weights.input_norm, stream, delta, at.x, at.n1);
  attention_.project_in(run, weights, at.rows.gather(run, at.n1), at, shape, positions);
}

template <class Exec>
void Block<Exec>::activate(Runner<Exec>& run, const BlockActivations& at) const {
  run(swiglu::forward_variants<Exec>(),
      swiglu::ForwardArgs{.gate = at.gate(), .up = at.up(), .out = at.product}, kernels_.swiglu);
}

template <class Exec>
void Block<Exec>::gated_mlp(Runner<Exec>& run, const BlockWeights& weights,
                            const BlockActivations& at) const {
  const std::int64_t half = at.product.extent[1];
  run.gemm({.a = at.rows.gather(run, at.n2),
            .b = rows_of(weights.gate_up, half, half),
            .c = at.product,
            .trans_b = true,
            .gate = rows_of(weights.gate_up, 0, half)},
           "katt::nn::gated_mlp");
}

template <class Exec>
void Block<Exec>::finish(Runner<Exec>& run, const BlockWeights& weights, const BlockActivations& at,
                         const TensorRef<2>& delta) const {
  attention_.project_out(run, weights, at, at.rows.target(delta));
  at.rows.sum(run, delta);
  norm(run, weights.post_norm, at.x, delta, at.h, at.n2);
  if (at.gate_up.size() == 0) {
    gated_mlp(run, weights, at);
  } else {
    project(run, kernels_, at.rows.gather(run, at.n2), weights.gate_up, weights.gate_up_bias,
            at.gate_up);
    activate(run, at);
  }
  project(run, kernels_, at.product, weights.down, weights.down_bias, at.rows.target(delta));
  at.rows.sum(run, delta);
}

template <class Exec>
void Block<Exec>::forward(Runner<Exec>& run, const BlockWeights& weights,
                          const BlockActivations& at, BatchShape shape, ConstTensorRef<2> stream,
                          const TensorRef<2>& delta) const {
  const bool is_first = stream.data == at.x.data;  // nothing to add yet
  norm_and_project(run, weights, at, shape, {}, stream,
                   is_first ? ConstTensorRef<2>() : ConstTensorRef<2>(delta));
  attention_.attend_own(run, at, shape);
  finish(run, weights, at, delta);
}

template <class Exec>
void Block<Exec>::recompute(Runner<Exec>& run, const BlockWeights& weights,
                            const BlockActivations& at, BatchShape shape, Recompute what,
                            const TensorRef<2>& scratch) const {
  if (has(what, Recompute::n1)) norm(run, weights.input_norm, at.x, {}, {}, at.n1);
  if (has(what, Recompute::qkv)) {
    attention_.project_in(run, weights, at.rows.gather(run, at.n1), at, shape, {});
  }
  if (has(what, Recompute::attended)) attention_.attend_own(run, at, shape);
  if (has(what, Recompute::h)) {
    attention_.project_out(run, weights, at, at.rows.target(scratch));
    at.rows.sum(run, scratch);
    norm(run, weights.post_norm, at.x, scratch, at.h, at.n2);
  } else if (has(what, Recompute::n2)) {
    norm(run, weights.post_norm, at.h, {}, {}, at.n2);
  }
  if (has(what, Recompute::gate_up)) {
    project(run, kernels_, at.rows.gather(run, at.n2), weights.gate_up, weights.gate_up_bias,
            at.gate_up);
  }
  if (has(what, Recompute::product)) activate(run, at);
}

template <class Exec>
void Block<Exec>::backward(Runner<Exec>& run, const BlockWeights& weights,
                           const BlockWeights& gradients, const BlockActivations& at,
                           BatchShape shape, const BackwardBuffers& buffers) const {
  const TensorRef<2>& g = buffers.g;
  const TensorRef<2> dgate_up = buffers.dgate_up ? buffers.dgate_up : at.gate_up;
  const std::int64_t half = at.product.extent[1];
  // When ranks share rows, all rows have one place in memory, which the products use one after the
  // other.
  project_backward(run, kernels_, at.product, weights.down, at.rows.gather(run, g), at.product,
                   gradients.down, gradients.down_bias, buffers.staging);
  run(swiglu::backward_variants<Exec>(),
      swiglu::BackwardArgs{.gate = at.gate(),
                           .up = at.up(),
                           .dout = at.product,
                           .dgate = columns(dgate_up, 0, half),
                           .dup = columns(dgate_up, half, half)},
      kernels_.swiglu);
  const TensorRef<2> n2 = at.rows.gather(run, at.n2);
  project_backward(run, kernels_, n2, weights.gate_up, dgate_up, n2, gradients.gate_up,
                   gradients.gate_up_bias, buffers.staging);
  at.rows.sum(run, at.n2);
  norm_backward(run, kernels_, config_.rms_norm_eps, at.n2, at.h, weights.post_norm, g, g,
                gradients.post_norm, buffers.staging);
  attention_.project_out_backward(run, weights, gradients, at, at.rows.gather(run, g), buffers);
  attention_.attend_backward(run, at, shape, buffers);
  const TensorRef<2> n1 = at.rows.gather(run, at.n1);
  attention_.project_in_backward(run, weights, gradients, n1, n1, buffers);
  at.rows.sum(run, at.n1);
  norm_backward(run, kernels_, config_.rms_norm_eps, at.n1, at.x, weights.input_norm, g, g,
                gradients.input_norm, buffers.staging);
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
  template Recompute parts_of_forward<Exec>(const LlamaConfig&, const Kernels&, std::int64_t);   \
  template class Block<Exec>;                                                                    \
  template void norm_backward<Exec>(Runner<Exec>&, const Kernels&, float, const TensorRef<2>&,   \
                                    const TensorRef<2>&, const TensorRef<1>&, ConstTensorRef<2>, \
                                    const TensorRef<2>&, const TensorRef<1>&,                    \
                                    const TensorRef<2>&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_BLOCK)

}  // namespace katt::nn
