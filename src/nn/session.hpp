#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nn/block.hpp"
#include "nn/model.hpp"

namespace katt::nn {

struct SessionOptions {
  std::int64_t batch = 1;
  std::int64_t capacity = 0;  ///< positions of a sequence
  /// Longer pieces than so many tokens are taken in parts, so that memory does not grow with them.
  std::int64_t chunk = 512;
  Kernels kernels{};
};

/// Inference: sequences of equal length that grow together, their keys and values cached for every
/// layer (batch, kv_heads, capacity, head_dim).
template <class Exec>
class Session {
 public:
  /// Allocates nothing, and can be asked for sizes only, when `dry`.
  Session(const Exec& exec, const LlamaConfig& config, Dtype dtype, Weights weights,
          SessionOptions options, bool dry = false);
  Session(const Llama<Exec>& model, SessionOptions options)
      : Session(model.exec(), model.config(), model.dtype(), model.weights(), std::move(options)) {}

  /// Appends (batch, n) tokens. Returns the logits of the last of them, (batch, vocab); of all of
  /// them, (batch, n, vocab), when `all`. Throws InputError when a token is not in the vocabulary
  /// or the capacity is too small.
  std::vector<float> append(std::span<const std::int64_t> ids, bool all = false);

  /// Positions that are filled.
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// Empties the cache.
  void clear() { length_ = 0; }

  [[nodiscard]] std::size_t cache_bytes() const { return cache_bytes_; }
  [[nodiscard]] std::size_t activation_bytes() const { return activation_bytes_; }
  [[nodiscard]] std::size_t workspace_bytes() const { return run_.workspace_bytes(); }

 private:
  /// Memory of one step over n tokens of every sequence.
  struct Step {
    TensorRef<2> cos_sin;  ///< the same in every step
    std::int64_t* ids = nullptr;
    BlockActivations at;
    TensorRef<2> delta;
    TensorRef<2> n;       ///< normalised output
    TensorRef<2> logits;  ///< (rows computed at a time, vocab)
  };
  Step lay_out(Arena& arena, std::int64_t n) const;
  void launch(Runner<Exec>& run, const Step& at, std::int64_t n, bool all);
  void launch_blocks(Runner<Exec>& run, const Step& at, BatchShape shape);
  void step(std::span<const std::int64_t> ids, std::int64_t n, bool all, std::span<float> logits);
  /// Logits of the rows first … of the normalised output.
  TensorRef<2> launch_head(Runner<Exec>& run, const Step& at, std::int64_t first,
                           std::int64_t count);
  TensorRef<4> cached(std::int64_t layer, int which, std::int64_t first, std::int64_t count) const;

  LlamaConfig config_;
  Dtype dtype_;
  Weights weights_;
  SessionOptions options_;
  std::int64_t length_ = 0;
  Runner<Exec> run_;
  std::size_t cache_bytes_ = 0, activation_bytes_ = 0;
  DeviceMemory<Exec> cache_;
  DeviceMemory<Exec> activations_;
};

}  // namespace katt::nn
