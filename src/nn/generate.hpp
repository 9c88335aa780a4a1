#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/sampling.hpp"
#include "nn/session.hpp"

namespace katt::nn {

struct GenerateOptions {
  std::int64_t max_new_tokens = 1;
  SamplingOptions sampling{};
  bool use_cache = true;     ///< without it every step computes the whole text again
  bool stop_at_eos = false;  ///< end after the model's eos_token_id
};

struct Generated {
  std::vector<std::int64_t> tokens;  ///< the new ones
  double prefill_s = 0;              ///< until the first of them
  double decode_s = 0;               ///< for the others
};

/// Continues a prompt, a token at a time. The session must be empty and hold the prompt and the new
/// tokens, for one sequence. Throws InputError as Session::append() and Sampler.
template <class Exec>
Generated generate(Session<Exec>& session, const LlamaConfig& config,
                   std::span<const std::int64_t> prompt, const GenerateOptions& options);

}  // namespace katt::nn
