#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "memory/transfer.hpp"
#include "nn/inference/kv_cache.hpp"
#include "nn/inference/replay.hpp"
#include "nn/model/block.hpp"
#include "nn/model/model.hpp"

namespace katt::nn {

/// Logits are not finite: a weight is not, or activations have left the range of the dtype.
class NotFiniteError : public std::runtime_error {
 public:
  /// Logits of the position of a sequence, computed in the dtype.
  NotFiniteError(std::int64_t position, std::size_t of_sequence, Dtype dtype);

  std::size_t sequence;  ///< index among the sequences of the call
};

/// Sizes of a session, and who computes it.
struct SessionOptions {
  std::int64_t batch = 1;     ///< sequences; with pages the most at once
  std::int64_t capacity = 0;  ///< positions of a sequence
  /// Longer pieces than this many tokens run in parts, so that memory does not grow with them.
  std::int64_t chunk = 512;
  /// Tokens of a page of the cache. 0: contiguous, sequences of equal length.
  std::int64_t page_size = 0;
  /// With pages, as in KvCacheConfig: their number, and the tokens that a long sequence keeps.
  std::int64_t pages = 0, window = 0, sinks = 0;
  Kernels kernels{};       ///< variants of the operators
  bool graphs = true;      ///< where the runtime has them, a decoded token is one
  ranks::Groups groups{};  ///< tensor parallel ranks and stages that compute together
};

/// Inference: sequences with their keys and values in a KvCache. Without pages their number is
/// fixed by the options, they have equal lengths and grow together. With pages each has a length of
/// its own: open() and close() start and end them, and each grows alone. A tensor parallel rank has
/// the cache of its heads, a stage of a pipeline that of its blocks; all call the same functions
/// and get the same logits. A stage computes a piece of a prompt while the next one computes the
/// piece before.
template <class Exec>
class Session {
 public:
  /// `config` describes the whole model. A `dry` session allocates nothing and only reports sizes.
  /// Activations and workspace come from the pool; throws memory::LimitError beyond its limit.
  Session(const Exec& exec, const LlamaConfig& config, Dtype dtype, Weights weights,
          SessionOptions options, bool dry = false, Pool<Exec> pool = {});
  /// A session of an opened model, with its groups. The model must outlive the session.
  Session(const Llama<Exec>& model, SessionOptions options, Pool<Exec> pool = {})
      : Session(model.exec(), model.config(), model.dtype(), model.weights(),
                with_groups(std::move(options), model.groups()), false, std::move(pool)) {}

  /// Appends (batch, n) tokens. Returns the logits of the last tokens, (batch, vocab); with `all`
  /// those of all tokens, (batch, n, vocab). Throws InputError when a token is not in the
  /// vocabulary or the capacity is too small, NotFiniteError for such logits.
  std::vector<float> append(std::span<const std::int64_t> ids, bool all = false);

  /// Positions that are filled.
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// Empties the cache.
  void clear();

  [[nodiscard]] std::int64_t batch() const {
    return options_.batch;
  }  ///< sequences; with pages the most at once
  [[nodiscard]] const Exec& exec() const {
    return run_.exec();
  }  ///< the instance that steps run on
  /// Further steps run on this instance. On a host they have the same bits on any number of threads.
  void use(const Exec& exec) { run_.use(exec); }
  /// With pages: a new sequence, empty. Throws InputError when the session is full.
  [[nodiscard]] std::int64_t open() { return cache_->acquire(); }
  /// Ends a sequence and frees its pages.
  void close(std::int64_t sequence) { cache_->release(sequence); }
  /// With pages: appends equally many of the ids, in order, to each of the sequences. Returns the
  /// logits of the last tokens, (sequences, vocab). One token each is one step for all sequences
  /// together; with more tokens the sequences run one after the other. Throws as append(), and
  /// InputError when the pages do not suffice or a sequence with a window gets more than one piece
  /// of several tokens.
  std::vector<float> append_to(std::span<const std::int64_t> sequences,
                               std::span<const std::int64_t> ids);

  /// Appends a token to each sequence (without pages to those of the batch; `sequences` is then not
  /// read) and returns the most likely token behind each, the first of equals. A device finds it
  /// without copying logits. Throws as append() and append_to().
  std::vector<std::int64_t> append_greedily(std::span<const std::int64_t> sequences,
                                            std::span<const std::int64_t> ids);

  /// The way to submit the launches of one token a sequence: "graph", one call that repeats them
  /// all, or "launches" and, on a device, the reason.
  [[nodiscard]] std::string submission() const;

  /// Bytes of the KV cache.
  [[nodiscard]] std::size_t cache_bytes() const { return kv_cache_bytes(cache_config()); }
  /// Bytes that the pool reserves for activations.
  [[nodiscard]] std::size_t activation_bytes() const {
    return memory::reserved_bytes(activation_bytes_);
  }
  /// Bytes that the pool reserves for workspaces.
  [[nodiscard]] std::size_t workspace_bytes() const {
    return memory::reserved_bytes(run_.workspace_bytes());
  }

 private:
  static SessionOptions with_groups(SessionOptions options, const ranks::Groups& groups) {
    options.groups = groups;
    return options;
  }
  /// Memory of one step.
  struct Step {
    TensorRef<2> cos_sin;  ///< the same in every step
    std::int64_t* ids = nullptr;
    std::int64_t* positions = nullptr;  ///< with pages
    TensorRef<4> keys, values;          ///< with pages: one sequence out of them
    std::int64_t* found = nullptr;      ///< the most likely tokens, of a step that is repeated
    BlockActivations at;
    TensorRef<2> delta;
    TensorRef<2> n;       ///< normalised output, or what the next stage gets
    TensorRef<2> logits;  ///< (rows computed at a time, vocab)
  };
  [[nodiscard]] bool is_paged() const { return options_.page_size > 0; }
  /// The result that a step must give: logits or tokens or neither.
  struct Wanted {
    std::span<float> logits{};
    std::span<std::int64_t> tokens{};  ///< the most likely tokens, of a repeated step
    [[nodiscard]] bool is_nothing() const { return logits.empty() && tokens.empty(); }
  };
  /// True when all launches of such a step are the same every time, apart from the contents of
  /// memory: on a device, one token a sequence, unless ranks work together or variants are chosen.
  [[nodiscard]] bool repeats(BatchShape shape) const { return repeats_tokens_ && shape.seq == 1; }
  [[nodiscard]] bool can_repeat_tokens() const;
  void check_ids(std::span<const std::int64_t> ids) const;
  void check_room(std::int64_t length, std::int64_t count) const;
  Step lay_out(Arena& arena, BatchShape shape) const;
  /// `begin`: positions of a sequence that are filled before the step, when all have equally many
  /// or there is one.
  void launch(Runner<Exec>& run, const Step& at, BatchShape shape, std::int64_t begin, bool all);
  void launch_blocks(Runner<Exec>& run, const Step& at, BatchShape shape, std::int64_t begin);
  void attend(Runner<Exec>& run, const MultiHeadAttention<Exec>& attention, const Step& at,
              BatchShape shape, std::int64_t layer, std::int64_t begin);
  void turn_and_append(const MultiHeadAttention<Exec>& attention, const Step& at, BatchShape shape,
                       std::int64_t layer);
  [[nodiscard]] attention::PagedArgs pages(std::int64_t layer) const;
  void step(std::span<const std::int64_t> slots, std::span<const std::int64_t> ids,
            std::int64_t begin, bool all, Wanted wanted);
  void repeat_step(const Step& at, std::span<const std::int64_t> slots,
                   std::span<const std::int64_t> ids, Wanted wanted);
  /// Sends the last stage's result to all stages.
  void share_logits(std::span<float> logits);
  /// Logits of the rows first … of the normalised output.
  TensorRef<2> launch_head(Runner<Exec>& run, const Step& at, std::int64_t first,
                           std::int64_t count);
  [[nodiscard]] KvCacheConfig cache_config() const;
  /// Keys and values of a layer at the positions before `seen`, (batch, kv_heads, seen, head_dim).
  struct Cached {
    ConstTensorRef<4> keys, values;
  };
  [[nodiscard]] Cached cached(std::int64_t layer, std::int64_t seen) const;

  /// Adds the logits of the ranks' parts of the vocabulary to `logits`, (rows, vocab).
  void read_logits(const TensorRef<2>& part, std::span<float> logits);

  Slice slice_;
  std::int64_t vocab_size_;
  LlamaConfig config_;  ///< logits of this rank's part
  Dtype dtype_;
  Weights weights_;
  SessionOptions options_;
  std::int64_t length_ = 0;
  Runner<Exec> run_;
  memory::Transfer<Exec> transfer_;  ///< of the logits
  std::size_t activation_bytes_ = 0;
  std::optional<KvCache<Exec>> cache_;  ///< none when dry
  std::vector<std::int64_t> slots_;     ///< slots of the sequences, in order; none with pages
  memory::PoolBlock activations_;
  bool repeats_tokens_ = false;
  Replay<Exec> replay_;
  /// Token ids for the device, then the ids that it has found: (2, batch).
  Kokkos::View<std::int64_t*, typename memory::impl::StagingSpace<Exec>::type> staging_;
  bool is_staging_read_ = false;  ///< read by a copy that nobody has waited for
  ranks::Request sent_;           ///< to the next stage; reads activations_
};

/// Bytes that a model and a session of it allocate, on the rank of the options' groups.
struct InferenceMemory {
  std::size_t parameters = 0, kv_cache = 0, activations = 0, workspace = 0;  ///< bytes
  std::size_t communication = 0;  ///< bytes of a sum over tensor parallel ranks
  /// The sum of all.
  [[nodiscard]] std::size_t total() const {
    return parameters + kv_cache + activations + workspace + communication;
  }
};

/// Forecast of these bytes, from a rehearsal that allocates nothing. Throws InputError for a layout
/// that does not fit the model.
template <class Exec>
[[nodiscard]] InferenceMemory inference_memory(const Exec& exec, const LlamaConfig& config,
                                               Dtype dtype, const SessionOptions& options);

}  // namespace katt::nn
