#include "nn/inference/session.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "core/parts.hpp"
#include "memory/touch.hpp"
#include "nn/inference/session_repeat.hpp"
#include "nn/model/ternary.hpp"
#include "nn/model/vocabulary.hpp"
#include "nn/products.hpp"
#include "ops/linear/linear.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/rope/rope.hpp"

namespace katt::nn {

namespace {

/// The last of every n rows.
TensorRef<2> last_rows(const TensorRef<2>& rows, std::int64_t n) {
  TensorRef<2> last = rows_of(rows, n - 1, rows.extent[0] / n);
  last.stride[0] *= n;
  return last;
}

/// A loop of integers, which compilers turn into vectors.
bool are_finite(std::span<const float> values) {
  constexpr std::uint32_t infinity = 0x7F800000U;
  std::uint32_t largest = 0;  // magnitude
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU);
  }
  return largest < infinity;
}

/// Rows of logits computed at a time: logits of a large vocabulary need more memory than all else.
constexpr std::int64_t logit_rows = 64;

}  // namespace

NotFiniteError::NotFiniteError(std::int64_t position, std::size_t of_sequence, Dtype dtype)
    : std::runtime_error(
          "the logits are not finite at position " + std::to_string(position) +
          ": a weight of the model is not, or " +
          (dtype == Dtype::f16
               ? "f16 overflows, which holds numbers up to 65504 (bf16 and f32: 3e38)"
               : "is too large")),
      sequence(of_sequence) {}

template <class Exec>
Session<Exec>::Session(const Exec& exec, const LlamaConfig& config, Dtype dtype, Weights weights,
                       SessionOptions options, bool dry, Pool<Exec> pool)
    : slice_(config, options.groups.place),
      vocab_size_(config.vocab_size),
      config_(part_of_config(config, slice_)),
      dtype_(dtype),
      weights_(std::move(weights)),
      options_(std::move(options)),
      run_(exec, dry, pool, options_.groups),
      transfer_(exec) {
  if (const ranks::Layout& layout = options_.groups.place.layout; layout.replicas() > 1) {
    throw std::invalid_argument("a session has tensor parallel ranks and stages alone");
  }
  if (options_.capacity < 1 || options_.chunk < 1) {
    throw InputError("session: capacity " + std::to_string(options_.capacity) + ", chunk " +
                     std::to_string(options_.chunk) + ": expected at least 1 each");
  }
  drop_repeated_biases(weights_, slice_);
  options_.chunk = std::min(options_.chunk, options_.capacity);
  repeats_tokens_ = can_repeat_tokens();
  if (!options_.graphs) replay_.refuse("no graph was asked for");
  // The largest steps: with pages many tokens of one sequence, or one of each. Steps of few tokens
  // need tensors that larger steps do not (parts_of_forward()).
  const BatchShape many{.batch = is_paged() ? 1 : options_.batch, .seq = options_.chunk};
  const BatchShape few{.batch = many.batch,
                       .seq = std::clamp<std::int64_t>(few_tokens / many.batch, 1, options_.chunk)};
  const BatchShape one{.batch = options_.batch, .seq = 1};
  const BatchShape few_of_one{
      .batch = is_paged() ? std::min(options_.batch, few_tokens) : options_.batch, .seq = 1};
  Runner<Exec> rehearsal(exec, true, {}, options_.groups);
  for (const BatchShape& shape : {many, few, one, few_of_one}) {
    Arena sizes;
    const Step at = lay_out(sizes, shape);
    activation_bytes_ = std::max(activation_bytes_, sizes.bytes());
    launch(rehearsal, at, shape, options_.capacity - shape.seq, true);
    if (is_paged()) launch(rehearsal, at, shape, 0, true);
  }
  run_.reserve(rehearsal.workspace_bytes());
  if (dry) return;
  cache_.emplace(cache_config());
  while (!is_paged() && std::ssize(slots_) < options_.batch) slots_.push_back(cache_->acquire());
  activations_ = pool.allocate(exec, activation_bytes_);
  memory::touch(exec, activations_.data(), activation_bytes_);
  cache_->touch(exec);
  run_.touch();
  if (repeats_tokens_) {
    staging_ =
        decltype(staging_)("katt::nn::session", 2 * static_cast<std::size_t>(options_.batch));
  }
  Arena arena(activations_.data());
  rope::build_cache(exec, config_.rope, lay_out(arena, one).cos_sin);
}

template <class Exec>
typename Session<Exec>::Step Session<Exec>::lay_out(Arena& arena, BatchShape shape) const {
  const std::int64_t tokens = shape.tokens();
  const auto rows = [&](std::int64_t columns) {
    return arena.tensor<2>(dtype_, {tokens, columns});
  };
  Step at;
  at.cos_sin = arena.tensor<2>(Dtype::f32, {options_.capacity, config_.head_dim});
  at.ids = arena.integers(tokens);
  if (is_paged()) {
    at.positions = arena.integers(tokens);
    // A prompt runs in pieces: each attends to the pieces before it.
    if (shape.seq > 1 && options_.chunk < options_.capacity && options_.window == 0) {
      for (TensorRef<4>* gathered : {&at.keys, &at.values}) {
        *gathered = arena.tensor<4>(
            dtype_, {1, config_.num_key_value_heads, options_.capacity, config_.head_dim});
      }
    }
  }
  if (repeats(shape)) at.found = arena.integers(tokens);
  at.at.x = rows(config_.hidden_size);
  at.at.attended = rows(config_.q_size());  // without lse
  const Recompute parts = parts_of_forward<Exec>(config_, options_.kernels, tokens);
  lay_out_block(arena, config_, dtype_, shape, without(parts, Recompute::attended), at.at);
  at.delta = rows(config_.hidden_size);
  at.n = rows(config_.hidden_size);
  if (!slice_.head) return at;
  at.logits = arena.tensor<2>(
      dtype_, {std::min(tokens, std::max(shape.batch, logit_rows)), config_.vocab_size});
  return at;
}

template <class Exec>
KvCacheConfig Session<Exec>::cache_config() const {
  return {.layers = config_.num_hidden_layers,
          .slots = options_.batch,
          .kv_heads = config_.num_key_value_heads,
          .head_dim = config_.head_dim,
          .capacity = options_.window > 0 ? 0 : options_.capacity,
          .dtype = dtype_,
          .page_size = options_.page_size,
          .pages = options_.pages,
          .window = options_.window,
          .sinks = options_.sinks};
}

template <class Exec>
typename Session<Exec>::Cached Session<Exec>::cached(std::int64_t layer, std::int64_t seen) const {
  Cached of_layer;
  if (cache_) {
    of_layer = {cache_->keys(layer), cache_->values(layer)};
  } else {
    of_layer.keys = Arena().tensor<4>(
        dtype_, {options_.batch, config_.num_key_value_heads, options_.capacity, config_.head_dim});
    of_layer.values = of_layer.keys;
  }
  of_layer.keys.extent[2] = seen;
  of_layer.values.extent[2] = seen;
  return of_layer;
}

template <class Exec>
void Session<Exec>::clear() {
  for (const std::int64_t slot : slots_) cache_->release(slot);
  for (std::int64_t& slot : slots_) slot = cache_->acquire();
  length_ = 0;
}

template <class Exec>
void Session<Exec>::check_ids(std::span<const std::int64_t> ids) const {
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      throw InputError("token " + std::to_string(id) + ": expected 0 to " +
                       std::to_string(vocab_size_ - 1) + ", the vocabulary of the model");
    }
  }
}

template <class Exec>
void Session<Exec>::check_room(std::int64_t length, std::int64_t count) const {
  if (const std::int64_t room = options_.capacity - length; count < 1 || count > room) {
    throw InputError("tokens: " + std::to_string(count) + " after " + std::to_string(length) +
                     " positions, expected 1 to " + std::to_string(room));
  }
}

template <class Exec>
std::vector<float> Session<Exec>::append(std::span<const std::int64_t> ids, bool all) {
  const std::int64_t n = static_cast<std::int64_t>(ids.size()) / options_.batch;
  if (is_paged()) throw std::logic_error("append: the session has pages");
  check_ids(ids);
  if (n * options_.batch != static_cast<std::int64_t>(ids.size())) {
    throw InputError("tokens: " + std::to_string(ids.size()) +
                     ", expected a multiple of the batch " + std::to_string(options_.batch));
  }
  check_room(length_, n);
  const auto vocab = static_cast<std::size_t>(vocab_size_);
  std::vector<float> logits(static_cast<std::size_t>(all ? options_.batch * n : options_.batch) *
                            vocab);
  std::vector<std::int64_t> part;
  std::vector<float> part_logits;
  for (std::int64_t done = 0; done < n; done += options_.chunk) {
    const std::int64_t count = std::min(options_.chunk, n - done);
    part.clear();
    for (std::int64_t b = 0; b < options_.batch; ++b) {
      const auto from = ids.begin() + b * n + done;
      part.insert(part.end(), from, from + count);
    }
    const std::size_t rows = static_cast<std::size_t>(all ? count : 1) * vocab;
    part_logits.resize(static_cast<std::size_t>(options_.batch) * rows);
    // Without `all` only the logits of the last piece are needed.
    const bool is_wanted = all || done + count == n;
    step(slots_, part, length_, all,
         {.logits = is_wanted ? std::span(part_logits) : std::span<float>()});
    length_ += count;
    for (std::int64_t b = 0; b < options_.batch; ++b) {
      const std::size_t to = static_cast<std::size_t>(all ? b * n + done : b) * vocab;
      std::copy_n(part_logits.begin() + b * static_cast<std::ptrdiff_t>(rows), rows,
                  logits.begin() + static_cast<std::ptrdiff_t>(to));
    }
  }
  share_logits(logits);
  const std::int64_t rows = all ? n : 1;  // of a sequence
  for (std::int64_t row = 0; row < options_.batch * rows; ++row) {
    const auto of_row = std::span(logits).subspan(static_cast<std::size_t>(row) * vocab, vocab);
    if (are_finite(of_row)) continue;
    throw NotFiniteError(length_ - rows + row % rows, static_cast<std::size_t>(row / rows), dtype_);
  }
  return logits;
}

template <class Exec>
std::vector<float> Session<Exec>::append_to(std::span<const std::int64_t> sequences,
                                            std::span<const std::int64_t> ids) {
  if (!is_paged()) throw std::logic_error("append_to: the session has no pages");
  if (sequences.empty() || ids.empty() || ids.size() % sequences.size() != 0) {
    throw InputError("tokens: " + std::to_string(ids.size()) + " for " +
                     std::to_string(sequences.size()) + " sequences, expected as many for each");
  }
  check_ids(ids);
  const std::size_t n = ids.size() / sequences.size();
  const auto vocab = static_cast<std::size_t>(vocab_size_);
  for (const std::int64_t sequence : sequences) {
    const std::int64_t length = cache_->length(sequence);
    check_room(length, static_cast<std::int64_t>(n));
    const bool is_whole = length == 0 && static_cast<std::int64_t>(n) <= options_.chunk;
    if (options_.window > 0 && n > 1 && !is_whole) {
      throw InputError("tokens: " + std::to_string(n) + " after " + std::to_string(length) +
                       " positions with a window, expected the first ones, at most " +
                       std::to_string(options_.chunk) + ", or one");
    }
  }
  std::vector<float> logits(sequences.size() * vocab);
  if (n == 1) step(sequences, ids, 0, false, {.logits = logits});
  const auto chunk = static_cast<std::size_t>(options_.chunk);
  for (std::size_t s = 0; n > 1 && s < sequences.size(); ++s) {
    const std::int64_t length = cache_->length(sequences[s]);
    // Where lay_out() leaves no room for earlier keys, tokens behind others come one by one.
    const bool singly = length > 0 && options_.chunk >= options_.capacity;
    const std::size_t piece = singly ? 1 : chunk;
    for (std::size_t done = 0; done < n; done += piece) {
      const bool is_last = done + piece >= n;
      step(sequences.subspan(s, 1), ids.subspan(s * n + done, std::min(piece, n - done)),
           singly ? 0 : cache_->length(sequences[s]), false,
           {.logits = std::span(logits).subspan(s * vocab, is_last ? vocab : 0)});
    }
  }
  share_logits(logits);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    if (are_finite(std::span(logits).subspan(s * vocab, vocab))) continue;
    throw NotFiniteError(cache_->length(sequences[s]) - 1, s, dtype_);
  }
  return logits;
}

template <class Exec>
attention::PagedArgs Session<Exec>::pages(std::int64_t layer) const {
  attention::PagedArgs args;
  args.mask.causal = true;
  if (cache_) {
    cache_->read(layer, args);
    return args;
  }
  static constexpr std::int64_t nowhere = 0;  // a rehearsal reads no tables
  const std::int64_t kept =
      options_.window > 0 ? options_.window + options_.sinks : options_.capacity;
  const std::int64_t page_size = std::max<std::int64_t>(is_paged() ? options_.page_size : kept, 1);
  args.k_pages =
      Arena().tensor<4>(dtype_, {1, config_.num_key_value_heads, page_size, config_.head_dim});
  args.v_pages = args.k_pages;
  args.block_table = &nowhere;
  args.pages_per_sequence = (kept + page_size - 1) / page_size;
  args.mask.kv_len = &nowhere;
  return args;
}

/// A sequence uses the same kernels among others as alone: several tokens attend to contiguous
/// keys.
template <class Exec>
void Session<Exec>::attend(Runner<Exec>& run, const MultiHeadAttention<Exec>& attention,
                           const Step& at, BatchShape shape, std::int64_t layer,
                           std::int64_t begin) {
  if (shape.seq == 1 && (is_paged() || repeats_tokens_)) {
    return attention.attend_paged(run, at.at, shape, pages(layer));
  }
  if (!is_paged()) {
    const Cached seen = cached(layer, begin + shape.seq);
    return attention.attend(run, at.at, shape, seen.keys, seen.values);
  }
  if (begin == 0 || !at.keys) return attention.attend_own(run, at.at, shape);
  TensorRef<4> keys = at.keys;
  TensorRef<4> values = at.values;
  keys.extent[2] = values.extent[2] = begin + shape.seq;
  if (!run.is_dry()) cache_->gather(run.exec(), layer, keys, values);
  attention.attend(run, at.at, shape, keys, values);
}

template <class Exec>
void Session<Exec>::launch_blocks(Runner<Exec>& run, const Step& at, BatchShape shape,
                                  std::int64_t begin) {
  // A repeated step turns q and k on their way to the cache.
  const Block<Exec> block(config_, options_.kernels,
                          repeats(shape) ? ConstTensorRef<2>() : at.cos_sin);
  const MultiHeadAttention<Exec>& attention = block.attention();
  ConstTensorRef<2> stream = at.at.x;
  ConstTensorRef<2> delta;  // nothing to add before the first block
  for (std::size_t i = 0; i < weights_.blocks.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    block.norm_and_project(run, weights_.blocks[i], at.at, shape, {begin, at.positions}, stream,
                           delta);
    if (!run.is_dry() && repeats(shape)) {
      turn_and_append(attention, at, shape, layer);
    } else if (!run.is_dry()) {
      cache_->append(run.exec(), layer, attention.keys(at.at, shape),
                     attention.values(at.at, shape));
    }
    attend(run, attention, at, shape, layer, begin);
    block.finish(run, weights_.blocks[i], at.at, at.delta);
    stream = at.at.h;
    delta = at.delta;
  }
}

template <class Exec>
void Session<Exec>::launch(Runner<Exec>& run, const Step& at, BatchShape shape, std::int64_t begin,
                           bool all) {
  const std::int64_t n = shape.seq;
  const ranks::Groups& groups = run.groups();
  if (repeats(shape)) {
    if (!run.is_dry()) cache_->advance(run.exec());
  } else if (is_paged() && !run.is_dry()) {
    cache_->positions(run.exec(), at.positions, n);
  }
  if (slice_.embedding) {
    embed(run, options_.kernels, weights_.embedding, at.ids, at.at.x);
  } else if (!run.is_dry()) {
    groups.pipeline.recv(run.exec(), at.at.x, groups.place.stage - 1).wait();
  }
  launch_blocks(run, at, shape, begin);
  if (!slice_.head) {
    if (run.is_dry()) return;
    add_rows(run.exec(), at.at.h, at.delta, at.n);
    sent_ = groups.pipeline.send(run.exec(), at.n, groups.place.stage + 1);
    return;
  }
  const auto wanted = [&](const TensorRef<2>& rows) { return all ? rows : last_rows(rows, n); };
  run(rmsnorm::forward_variants<Exec>(),
      rmsnorm::ForwardArgs{.x = wanted(at.delta),
                           .weight = weights_.norm,
                           .residual = wanted(at.at.h),
                           .out = rows_of(at.n, 0, wanted(at.delta).extent[0]),
                           .residual_out = wanted(at.at.x),
                           .eps = config_.rms_norm_eps},
      options_.kernels.rmsnorm);
  if (run.is_dry()) (void)launch_head(run, at, 0, at.logits.extent[0]);
}

template <class Exec>
TensorRef<2> Session<Exec>::launch_head(Runner<Exec>& run, const Step& at, std::int64_t first,
                                        std::int64_t count) {
  const TensorRef<2> out = rows_of(at.logits, 0, count);
  run(linear::forward_variants<Exec>(),
      linear::ForwardArgs{.x = rows_of(at.n, first, count), .weight = weights_.head, .out = out},
      options_.kernels.linear);
  return out;
}

template <class Exec>
void Session<Exec>::step(std::span<const std::int64_t> slots, std::span<const std::int64_t> ids,
                         std::int64_t begin, bool all, Wanted wanted) {
  const BatchShape shape{.batch = std::ssize(slots), .seq = std::ssize(ids) / std::ssize(slots)};
  sent_.wait();  // a step of another shape lays other tensors over the rows that are read
  Arena arena(activations_.data());
  const Step at = lay_out(arena, shape);
  if (arena.bytes() > activation_bytes_) {
    throw std::logic_error("a step has more activations than the session has room for");
  }
  if (repeats(shape)) return repeat_step(at, slots, ids, wanted);
  const std::span<float> logits = wanted.logits;
  const ranks::Part part = ranks::part_of(vocab_size_, slice_.tensor, slice_.tensor_rank);
  const auto own_ids = local_ids(ids, {part.begin, part.count});
  copy_from_host(run_.exec(), std::as_bytes(std::span(own_ids)), at.ids);
  cache_->extend(run_.exec(), slots, std::vector<std::int64_t>(slots.size(), shape.seq));
  launch(run_, at, shape, begin, all);
  if (!slice_.head || logits.empty()) return;
  const std::int64_t rows = all ? shape.tokens() : shape.batch;
  const std::int64_t at_once = at.logits.extent[0];
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const TensorRef<2> out = launch_head(run_, at, first, std::min(at_once, rows - first));
    read_logits(out, logits.subspan(static_cast<std::size_t>(first * vocab_size_),
                                    static_cast<std::size_t>(out.extent[0] * vocab_size_)));
  }
}

template <class Exec>
void Session<Exec>::share_logits(std::span<float> logits) {
  const ranks::Groups& groups = options_.groups;
  const int stages = groups.place.layout.pipeline;
  if (stages == 1) return;
  const TensorRef<1> all(logits.data(), Dtype::f32, {std::ssize(logits)});
  groups.pipeline.broadcast(serial_host(), all, stages - 1).wait();
}

template <class Exec>
void Session<Exec>::read_logits(const TensorRef<2>& part, std::span<float> logits) {
  if (slice_.tensor == 1) return read_elements(transfer_, part.data, part.dtype, logits);
  // Rows of equal length: the last rank's part of the vocabulary may be shorter.
  const std::int64_t rows = part.extent[0];
  const std::int64_t longest = ranks::part_of(vocab_size_, slice_.tensor, 0).count;
  std::vector<float> own(static_cast<std::size_t>(rows * longest));
  read_elements(transfer_, part.data, part.dtype,
                std::span(own).first(static_cast<std::size_t>(part.size())));
  std::vector<float> all(own.size() * static_cast<std::size_t>(slice_.tensor));
  const auto tensor = [](std::vector<float>& values) {
    return TensorRef<1>(values.data(), Dtype::f32, {std::ssize(values)});
  };
  options_.groups.tensor.all_gather(serial_host(), tensor(own), tensor(all)).wait();
  for (int rank = 0; rank < slice_.tensor; ++rank) {
    const ranks::Part of = ranks::part_of(vocab_size_, slice_.tensor, rank);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(all.begin() + rank * rows * longest + row * of.count, of.count,
                  logits.begin() + row * vocab_size_ + of.begin);
    }
  }
}

template <class Exec>
InferenceMemory inference_memory(const Exec& exec, const LlamaConfig& config, Dtype dtype,
                                 const SessionOptions& options) {
  check_layout(config, options.groups.place.layout);
  const ParameterLayout layout(config, Slice(config, options.groups.place), config.ternary);
  Arena nowhere;
  auto weights =
      bind_weights(config, layout, dtype, nowhere.tensor<1>(dtype, {layout.size()}).data);
  const std::size_t packed = rehearse_ternary(config, layout, weights);
  const Session<Exec> dry(exec, config, dtype, weights, options, true);
  // The largest sum over tensor parallel ranks: rows of the stream for all tokens of a step.
  const std::int64_t sequences = options.page_size > 0 ? 1 : options.batch;
  const std::int64_t tokens =
      std::max(sequences * std::min(options.chunk, options.capacity), options.batch);
  return {
      static_cast<std::size_t>(layout.size()) * size_of(dtype) + packed, dry.cache_bytes(),
      dry.activation_bytes(), dry.workspace_bytes(),
      ranks::summing_bytes(tokens * config.hidden_size, dtype, options.groups.place.layout.tensor)};
}

#define KATT_INSTANTIATE_SESSION(Exec)                                                    \
  template class Session<Exec>;                                                           \
  template InferenceMemory inference_memory<Exec>(const Exec&, const LlamaConfig&, Dtype, \
                                                  const SessionOptions&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_SESSION)

}  // namespace katt::nn
