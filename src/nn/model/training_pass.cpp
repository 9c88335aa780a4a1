#include "nn/model/training_pass.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/execution.hpp"
#include "core/stopwatch.hpp"
#include "memory/touch.hpp"
#include "nn/device_memory.hpp"
#include "nn/products.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rope/rope.hpp"

namespace katt::nn {

namespace {

/// A pass that computes nothing again also keeps its logits if its blocks keep this many times as
/// much.
constexpr std::size_t least_kept_per_logit = 4;

}  // namespace

template <class Exec>
TrainingPass<Exec>::TrainingPass(const Exec& exec, const LlamaConfig& config, Dtype dtype,
                                 PassOptions options, Weights weights, Weights gradients, bool dry,
                                 Pool<Exec> pool)
    : slice_(Slice(config, options.groups.place).of_part(options.part)),
      config_(part_of_config(config, slice_)),
      dtype_(dtype),
      options_(std::move(options)),
      weights_(std::move(weights)),
      gradients_(std::move(gradients)),
      run_(exec, dry, pool, options_.groups) {
  if (options_.recompute.size() != static_cast<std::size_t>(config.num_hidden_layers)) {
    throw std::invalid_argument("recompute: expected one entry a block");
  }
  const ranks::Place& place = options_.groups.place;
  const int stages = place.layout.pipeline;
  next_stage_ = (place.stage + 1) % stages;
  previous_stage_ = (place.stage + stages - 1) % stages;
  const Slice stage(config, place);
  first_gradient_ = static_cast<const float*>(
      stage.embedding ? gradients_.embedding.data : gradients_.blocks[0].input_norm.data);
  std::int64_t before = 0;
  for (std::size_t v = 0; v < options_.part; ++v) before += stage.parts[v].count;
  for (Weights* weights : {&weights_, &gradients_}) {
    const auto own = weights->blocks.begin() + before;
    weights->blocks = std::vector<BlockWeights>(own, own + slice_.blocks);
  }
  const auto first = options_.recompute.begin() + slice_.parts[0].begin;
  options_.recompute = std::vector<Recompute>(first, first + slice_.blocks);
  options_.shape.seq /= options_.groups.place.layout.context;
  const ranks::Part part = ranks::part_of(config.vocab_size, slice_.tensor, slice_.tensor_rank);
  vocabulary_ = {part.begin, part.count};
  drop_repeated_biases(weights_, slice_);
  lay_out(Arena());
  if (!dry) {
    memory_ = pool.allocate(exec, activation_bytes_);
    lay_out(Arena(memory_.data()));
    if (rows_.all) {
      clear_rows(exec, rows_.all);
      clear_rows(exec, n_);
    }
    if (positions_ != nullptr) {
      const auto positions =
          zigzag_positions(options_.shape.seq * options_.groups.place.layout.context,
                           options_.groups.place.layout.context, options_.groups.place.context);
      copy_from_host(exec, std::as_bytes(std::span(positions)), positions_);
    }
    rope::build_cache(exec, config_.rope, cos_sin_, positions_);
  }
  Runner<Exec> rehearsal(exec, true, {}, options_.groups);
  launch_forward(rehearsal);
  launch_backward(rehearsal, 1.0F, true, {});
  run_.reserve(rehearsal.workspace_bytes());
}

template <class Exec>
void TrainingPass<Exec>::touch() const {
  memory::touch(run_.exec(), memory_.data(), activation_bytes_);
  run_.touch();
}

template <class Exec>
void TrainingPass<Exec>::lay_out(Arena arena) {
  const std::int64_t tokens = options_.shape.tokens();
  const auto rows = [&](std::int64_t columns) {
    return arena.tensor<2>(dtype_, {tokens, columns});
  };
  const ranks::Layout& layout = options_.groups.place.layout;
  const std::int64_t own = StreamRows::rows_of_rank(tokens, layout);
  const std::int64_t all = layout.shares_rows() ? layout.tensor * own : own;
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t qkv = config_.q_size() + 2 * config_.kv_size();
  const bool shares_sequences = options_.groups.place.layout.context > 1;

  const auto stream = [&] { return arena.tensor<2>(dtype_, {own, hidden}); };

  ids_ = arena.integers(tokens);
  gradient_ids_ = config_.pad_token_id < 0 ? ids_ : arena.integers(tokens);
  targets_ = arena.integers(tokens);
  cos_sin_ = arena.tensor<2>(Dtype::f32, {options_.shape.seq, config_.head_dim});
  if (shares_sequences) positions_ = arena.integers(options_.shape.seq);

  // Tensors that are computed again share one place for all blocks.
  auto again = Recompute::nothing;
  for (const Recompute what : options_.recompute) again = again | what;
  BlockActivations shared;
  if (shares_sequences && layout.context_variant == ranks::ContextVariant::ulysses) {
    shared.ulysses = lay_out_ulysses(
        arena, dtype_,
        ulysses_shape_of(config_.num_attention_heads, config_.num_key_value_heads, config_.head_dim,
                         options_.shape.batch, options_.shape.seq, options_.groups.place),
        true);
  } else if (shares_sequences) {
    shared.ring =
        lay_out_ring(arena, dtype_,
                     {options_.shape.batch, options_.shape.seq, config_.num_attention_heads,
                      config_.num_key_value_heads, config_.head_dim});
  }
  rows_.tokens = tokens;
  if (layout.shares_rows()) rows_.all = arena.tensor<2>(dtype_, {all, hidden});
  shared.rows = rows_;
  lay_out_block(arena, config_, dtype_, options_.shape, again, shared, own);
  blocks_.clear();
  for (const Recompute what : options_.recompute) {
    BlockActivations& at = blocks_.emplace_back(shared);
    at.x = stream();
    lay_out_block(arena, config_, dtype_, options_.shape, without(Recompute::all, what), at, own);
  }
  delta_ = stream();
  x_ = stream();
  n_ = arena.tensor<2>(dtype_, {all, hidden});
  loss_.loss = arena.tensor<1>(Dtype::f32, {1});
  loss_.statistics = arena.tensor<2>(Dtype::f32, {tokens, 2});
  if (slice_.tensor > 1) {
    loss_.own_statistics = arena.tensor<2>(Dtype::f32, {tokens, 2});
    loss_.all_statistics = arena.tensor<3>(Dtype::f32, {slice_.tensor, tokens, 2});
    loss_.token_losses = arena.tensor<1>(Dtype::f32, {tokens});
  }
  if (slice_.head && again == Recompute::nothing) {
    Arena block;
    BlockActivations whole;  // with shared rows and without
    lay_out_block(block, config_, dtype_, options_.shape, Recompute::all, whole, tokens);
    Arena logits;
    logits.tensor<2>(Dtype::f32, {tokens, vocabulary_.count});
    if (logits.bytes() * least_kept_per_logit <= block.bytes() * blocks_.size()) {
      loss_.kept_logits = arena.tensor<2>(Dtype::f32, {tokens, vocabulary_.count});
    }
  }

  buffers_.g = stream();
  buffers_.dqkv = rows(qkv);
  buffers_.dattended = rows(config_.q_size());
  // "naive" writes dup before it reads up.
  if (options_.kernels.swiglu == "naive") buffers_.dgate_up = rows(2 * config_.intermediate_size);
  // the largest gradient that an operator gives in the model's dtype: an embedding, or a bias
  const std::int64_t table = slice_.embedding || slice_.head ? config_.vocab_size * hidden : hidden;
  buffers_.staging =
      arena.tensor<2>(dtype_, {1, std::max({table, 2 * config_.intermediate_size, qkv})});
  activation_bytes_ = arena.bytes();
}

template <class Exec>
std::vector<std::int64_t> TrainingPass<Exec>::own(std::span<const std::int64_t> values) const {
  const int ranks = options_.groups.place.layout.context;
  std::vector<std::int64_t> result;
  if (ranks == 1) {
    result.assign(values.begin(), values.end());
    return result;
  }
  const std::int64_t seq = options_.shape.seq * ranks;
  const auto positions = zigzag_positions(seq, ranks, options_.groups.place.context);
  for (std::int64_t b = 0; b < options_.shape.batch; ++b) {
    for (const std::int64_t position : positions) {
      result.push_back(values[static_cast<std::size_t>(b * seq + position)]);
    }
  }
  return result;
}

template <class Exec>
void TrainingPass<Exec>::set_batch(std::span<const std::int64_t> ids,
                                   std::span<const std::int64_t> targets) {
  std::vector<std::int64_t> own_ids = own(ids);
  std::vector<std::int64_t> own_targets = own(targets);
  counted_ = static_cast<std::int64_t>(own_targets.size()) -
             std::ranges::count(own_targets, cross_entropy::default_ignore_index);
  std::vector<std::size_t> padding;  // places of the token that is not trained
  for (std::size_t i = 0; gradient_ids_ != ids_ && i < own_ids.size(); ++i) {
    if (own_ids[i] == config_.pad_token_id) padding.push_back(i);
  }
  if (slice_.tensor > 1) {
    own_ids = local_ids(own_ids, vocabulary_);
    own_targets = local_targets(own_targets, vocabulary_);
  }
  copy_from_host(run_.exec(), std::as_bytes(std::span(own_ids)), ids_);
  if (gradient_ids_ != ids_) {
    for (const std::size_t i : padding) own_ids[i] = -1;
    copy_from_host(run_.exec(), std::as_bytes(std::span(own_ids)), gradient_ids_);
  }
  copy_from_host(run_.exec(), std::as_bytes(std::span(own_targets)), targets_);
}

template <class Exec>
float TrainingPass<Exec>::forward() {
  launch_forward(run_);
  return slice_.head ? mean_loss(run_, loss_, counted_) : 0.0F;
}

template <class Exec>
void TrainingPass<Exec>::backward(float dloss, bool is_first, bool is_last,
                                  const std::function<void(std::int64_t)>& ready) {
  run_.set_adds_gradients(!is_first);
  launch_backward(run_, dloss, is_last, ready);
}

template <class Exec>
void TrainingPass<Exec>::sum_norm(Runner<Exec>& run, const TensorRef<1>& gradient) const {
  if (rows_.all) run.sum_over_tensor_ranks(gradient);
}

template <class Exec>
void TrainingPass<Exec>::receive(Runner<Exec>& run, const ranks::Communicator& pipeline,
                                 const TensorRef<2>& rows, int stage) {
  run.exec().fence("katt::nn::TrainingPass: before waiting for a stage");
  const Stopwatch watch;
  pipeline.recv(run.exec(), rows, stage).wait();
  waited_s_ += watch.seconds();
}

template <class Exec>
void TrainingPass<Exec>::launch_forward(Runner<Exec>& run) {
  const ranks::Groups& groups = run.groups();
  if (slice_.embedding) {
    embed(run, options_.kernels, weights_.embedding, ids_, blocks_[0].x, rows_);
  } else if (!run.is_dry()) {
    receive(run, groups.pipeline, blocks_[0].x, previous_stage_);
  }
  const Block<Exec> block(config_, options_.kernels, cos_sin_);
  TensorRef<2> stream = blocks_[0].x;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    block.forward(run, weights_.blocks[i], blocks_[i], options_.shape, stream, delta_);
    stream = blocks_[i].h;
  }
  if (!slice_.head) {
    if (run.is_dry()) return;
    sent_.wait();  // the earlier message from this memory
    add_rows(run.exec(), stream, delta_, x_);
    sent_ = groups.pipeline.send(run.exec(), x_, next_stage_);
    return;
  }
  // All rows stay for the backward pass, so they have a place of their own.
  const StreamRows normed{rows_.all ? n_ : TensorRef<2>(), rows_.tokens};
  const std::int64_t own = x_.extent[0];
  const TensorRef<2> own_n = rows_.all ? rows_of(n_, slice_.tensor_rank * own, own) : n_;
  run(rmsnorm::forward_variants<Exec>(),
      rmsnorm::ForwardArgs{.x = delta_,
                           .weight = weights_.norm,
                           .residual = stream,
                           .out = own_n,
                           .residual_out = x_,
                           .eps = config_.rms_norm_eps},
      options_.kernels.rmsnorm);
  loss_forward(run, options_.kernels, normed.gather(run, own_n), weights_.head, targets_, loss_);
}

template <class Exec>
void TrainingPass<Exec>::launch_loss_backward(Runner<Exec>& run, float dloss) {
  const TensorRef<2> dhead(buffers_.staging.data, dtype_, weights_.head.extent);
  loss_backward(run, options_.kernels, rows_of(n_, 0, rows_.tokens), weights_.head, targets_, loss_,
                delta_, dhead, dloss, rows_);
  add_gradient(run, dhead.data, dtype_, gradients_.head.data, dhead.size());
  norm_backward(run, options_.kernels, config_.rms_norm_eps, delta_, x_, weights_.norm, {},
                buffers_.g, gradients_.norm, buffers_.staging);
}

template <class Exec>
void TrainingPass<Exec>::launch_backward(Runner<Exec>& run, float dloss, bool is_last,
                                         const std::function<void(std::int64_t)>& ready) {
  const ranks::Groups& groups = run.groups();
  if (!run.is_dry()) sent_back_.wait();  // the gradient that went to the stage before
  if (slice_.head) {
    launch_loss_backward(run, dloss);
    if (is_last) sum_norm(run, gradients_.norm);
  } else if (!run.is_dry()) {
    receive(run, groups.pipeline_back, buffers_.g, next_stage_);
  }
  const Block<Exec> block(config_, options_.kernels, cos_sin_);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    // All tensors of the last block are still there, also in the shared place.
    const bool is_there = i + 1 == blocks_.size();
    const Recompute what = is_there ? Recompute::nothing : options_.recompute[i];
    block.recompute(run, weights_.blocks[i], blocks_[i], options_.shape, what, delta_);
    block.backward(run, weights_.blocks[i], gradients_.blocks[i], blocks_[i], options_.shape,
                   buffers_);
    if (is_last) {
      sum_norm(run, gradients_.blocks[i].input_norm);
      sum_norm(run, gradients_.blocks[i].post_norm);
    }
    // The last parts of a stage come first.
    if (ready && (i > 0 || options_.part > 0)) {
      ready(static_cast<const float*>(gradients_.blocks[i].input_norm.data) - first_gradient_);
    }
  }
  if (!slice_.embedding) {
    if (run.is_dry()) return;
    sent_back_ = groups.pipeline_back.send(run.exec(), buffers_.g, previous_stage_);
    return;
  }
  const TensorRef<2> dembedding(buffers_.staging.data, dtype_, weights_.embedding.extent);
  run(embedding::backward_variants<Exec>(),
      embedding::BackwardArgs{
          .dout = rows_.gather(run, buffers_.g), .ids = gradient_ids_, .dweight = dembedding},
      options_.kernels.embedding);
  // A tied table already holds the gradient of the head.
  if (slice_.head && config_.tie_word_embeddings) run.set_adds_gradients(true);
  add_gradient(run, dembedding.data, dtype_, gradients_.embedding.data, dembedding.size());
}

#define KATT_INSTANTIATE_PASS(Exec) template class TrainingPass<Exec>;

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PASS)

}  // namespace katt::nn
