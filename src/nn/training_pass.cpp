#include "nn/training_pass.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/execution.hpp"
#include "nn/device_memory.hpp"
#include "nn/products.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rope/rope.hpp"

namespace katt::nn {

template <class Exec>
TrainingPass<Exec>::TrainingPass(const Exec& exec, const LlamaConfig& config, Dtype dtype,
                                 PassOptions options, Weights weights, Weights gradients, bool dry,
                                 Pool<Exec> pool)
    : config_(config),
      dtype_(dtype),
      options_(std::move(options)),
      weights_(std::move(weights)),
      gradients_(std::move(gradients)),
      run_(exec, dry, pool) {
  if (options_.recompute.size() != static_cast<std::size_t>(config_.num_hidden_layers)) {
    throw std::invalid_argument("recompute: expected one entry a block");
  }
  lay_out(Arena());
  if (!dry) {
    memory_ = pool.allocate(exec, activation_bytes_);
    lay_out(Arena(memory_.data()));
    rope::build_cache(exec, config_.rope, cos_sin_);
  }
  Runner<Exec> rehearsal(exec, true);
  launch_forward(rehearsal);
  launch_backward(rehearsal, 1.0F);
  run_.reserve(rehearsal.workspace_bytes());
}

template <class Exec>
void TrainingPass<Exec>::lay_out(Arena arena) {
  const std::int64_t tokens = options_.shape.tokens();
  const auto rows = [&](std::int64_t columns) {
    return arena.tensor<2>(dtype_, {tokens, columns});
  };
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t qkv = config_.q_size() + 2 * config_.kv_size();

  ids_ = arena.integers(tokens);
  targets_ = arena.integers(tokens);
  cos_sin_ = arena.tensor<2>(Dtype::f32, {options_.shape.seq, config_.head_dim});

  // What is computed again lies in one place for all blocks.
  auto again = Recompute::nothing;
  for (const Recompute what : options_.recompute) again = again | what;
  BlockActivations shared;
  lay_out_block(arena, config_, dtype_, options_.shape, again, shared);
  blocks_.clear();
  for (const Recompute what : options_.recompute) {
    BlockActivations& at = blocks_.emplace_back(shared);
    at.x = rows(hidden);
    lay_out_block(arena, config_, dtype_, options_.shape, without(Recompute::all, what), at);
  }
  delta_ = rows(hidden);
  x_ = rows(hidden);
  n_ = rows(hidden);
  loss_ = arena.tensor<1>(Dtype::f32, {1});
  statistics_ = arena.tensor<2>(Dtype::f32, {tokens, 2});

  buffers_.g = rows(hidden);
  buffers_.dqkv = rows(qkv);
  buffers_.dattended = rows(config_.q_size());
  // the largest gradient that an operator gives in the model's dtype: an embedding, or a bias
  buffers_.staging = arena.tensor<2>(
      dtype_, {1, std::max({config_.vocab_size * hidden, 2 * config_.intermediate_size, qkv})});
  activation_bytes_ = arena.bytes();
}

template <class Exec>
void TrainingPass<Exec>::set_batch(std::span<const std::int64_t> ids,
                                   std::span<const std::int64_t> targets) {
  copy_from_host(run_.exec(), std::as_bytes(ids), ids_);
  copy_from_host(run_.exec(), std::as_bytes(targets), targets_);
}

template <class Exec>
float TrainingPass<Exec>::forward() {
  launch_forward(run_);
  float loss = 0;
  copy_to_host(run_.exec(), loss_.data, std::as_writable_bytes(std::span(&loss, 1)));
  return loss;
}

template <class Exec>
void TrainingPass<Exec>::backward(float dloss) {
  launch_backward(run_, dloss);
}

template <class Exec>
void TrainingPass<Exec>::launch_forward(Runner<Exec>& run) {
  run(embedding::forward_variants<Exec>(),
      embedding::ForwardArgs{.weight = weights_.embedding, .ids = ids_, .out = blocks_[0].x},
      options_.kernels.embedding);
  const Block<Exec> block(config_, options_.kernels, cos_sin_);
  TensorRef<2> stream = blocks_[0].x;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    block.forward(run, weights_.blocks[i], blocks_[i], options_.shape, stream, delta_);
    stream = blocks_[i].h;
  }
  run(rmsnorm::forward_variants<Exec>(),
      rmsnorm::ForwardArgs{.x = delta_,
                           .weight = weights_.norm,
                           .residual = stream,
                           .out = n_,
                           .residual_out = x_,
                           .eps = config_.rms_norm_eps},
      options_.kernels.rmsnorm);
  run(linear_cross_entropy::forward_variants<Exec>(),
      linear_cross_entropy::ForwardArgs{.hidden = n_,
                                        .weight = weights_.head,
                                        .targets = targets_,
                                        .loss = loss_,
                                        .statistics = statistics_},
      options_.kernels.linear_cross_entropy);
}

template <class Exec>
void TrainingPass<Exec>::launch_loss_backward(Runner<Exec>& run, float dloss) {
  const TensorRef<2> dhead(buffers_.staging.data, dtype_, weights_.head.extent);
  run(linear_cross_entropy::backward_variants<Exec>(),
      linear_cross_entropy::BackwardArgs{.hidden = n_,
                                         .weight = weights_.head,
                                         .targets = targets_,
                                         .statistics = statistics_,
                                         .dhidden = delta_,
                                         .dweight = dhead,
                                         .dloss = dloss},
      options_.kernels.linear_cross_entropy);
  add_gradient(run, dhead.data, dtype_, gradients_.head.data, dhead.size());
  norm_backward(run, options_.kernels, config_.rms_norm_eps, delta_, x_, weights_.norm, {},
                buffers_.g, gradients_.norm, buffers_.staging);
}

template <class Exec>
void TrainingPass<Exec>::launch_backward(Runner<Exec>& run, float dloss) {
  launch_loss_backward(run, dloss);
  const Block<Exec> block(config_, options_.kernels, cos_sin_);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    // Of the last block everything is still there, in the shared place too.
    const bool is_last = i + 1 == blocks_.size();
    const Recompute what = is_last ? Recompute::nothing : options_.recompute[i];
    block.recompute(run, weights_.blocks[i], blocks_[i], options_.shape, what, delta_);
    block.backward(run, weights_.blocks[i], gradients_.blocks[i], blocks_[i], options_.shape,
                   buffers_);
  }
  const TensorRef<2> dembedding(buffers_.staging.data, dtype_, weights_.embedding.extent);
  run(embedding::backward_variants<Exec>(),
      embedding::BackwardArgs{.dout = buffers_.g, .ids = ids_, .dweight = dembedding},
      options_.kernels.embedding);
  add_gradient(run, dembedding.data, dtype_, gradients_.embedding.data, dembedding.size());
}

#define KATT_INSTANTIATE_PASS(Exec) template class TrainingPass<Exec>;

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PASS)

}  // namespace katt::nn
