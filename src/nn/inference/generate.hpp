#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/inference/sampling.hpp"
#include "nn/inference/session.hpp"

namespace katt::nn {

/// How a prompt is continued.
struct GenerateOptions {
  std::int64_t max_new_tokens = 1;  ///< tokens to generate
  SamplingOptions sampling{};       ///< choice of a token
  bool use_cache = true;            ///< without it every step computes the whole text again
  bool stop_at_eos = false;         ///< end after one of the model's eos_token_ids
  /// On a host: run each step on all threads or on one, whichever is faster at the time
  /// (nn/inference/pace.hpp). Threads that meet at barriers are slower than one thread when other
  /// programs take processors.
  bool adapts_threads = false;
};

/// The continuation of a prompt.
struct Generated {
  std::vector<std::int64_t> tokens;  ///< the new tokens
  double prefill_s = 0;              ///< seconds until the first new token
  double decode_s = 0;               ///< seconds for the others
};

/// Continues a prompt, a token at a time. The session must be empty and hold the prompt and the new
/// tokens, for one sequence. Throws InputError as Session::append() and Sampler.
template <class Exec>
Generated generate(Session<Exec>& session, const LlamaConfig& config,
                   std::span<const std::int64_t> prompt, const GenerateOptions& options);

/// The results of several prompts.
struct GeneratedBatch {
  std::vector<std::vector<std::int64_t>> tokens;  ///< the new tokens of each prompt, in order
  std::int64_t steps = 0;  ///< steps of decoding: a token of every running sequence
  double prefill_s = 0;    ///< tokens of all prompts
  double decode_s = 0;     ///< seconds of the steps of decoding
};

/// Continues several prompts of any lengths in one batch, each as generate() continues it alone:
/// with its own sampler and the same seed. A prompt that finds the session full waits until another
/// one has ended. The session must be empty and have pages. Throws InputError as
/// Session::append_to() and Sampler, NotFiniteError whose sequence is the prompt.
template <class Exec>
GeneratedBatch generate(Session<Exec>& session, const LlamaConfig& config,
                        std::span<const std::vector<std::int64_t>> prompts,
                        const GenerateOptions& options);

/// Options of a session that continues such prompts, at most `batch` of them at once: the longest with
/// its new tokens, and pages for as many of the longest ones. `window` and `sinks` as KvCacheConfig has
/// them.
[[nodiscard]] SessionOptions session_for(std::span<const std::vector<std::int64_t>> prompts,
                                         std::int64_t max_new_tokens, std::int64_t batch,
                                         std::int64_t window = 0, std::int64_t sinks = 0);

}  // namespace katt::nn
