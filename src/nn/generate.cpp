#include "nn/generate.hpp"

#include <chrono>

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>

#include "core/execution.hpp"

namespace katt::nn {

template <class Exec>
Generated generate(Session<Exec>& session, const LlamaConfig& config,
                   std::span<const std::int64_t> prompt, const GenerateOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  Sampler sampler(options.sampling);
  Generated result;
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  const auto start = Clock::now();
  std::vector<float> logits;
  {
    const Kokkos::Profiling::ScopedRegion phase("prefill");
    logits = session.append(prompt);
  }
  const auto prefilled = Clock::now();
  const Kokkos::Profiling::ScopedRegion phase("decode");
  while (static_cast<std::int64_t>(result.tokens.size()) < options.max_new_tokens) {
    const std::int64_t token = sampler.pick(logits);
    result.tokens.push_back(token);
    text.push_back(token);
    const bool is_last =
        static_cast<std::int64_t>(result.tokens.size()) == options.max_new_tokens ||
        (options.stop_at_eos && config.eos_token_id == token);
    if (is_last) break;
    if (!options.use_cache) session.clear();
    logits = options.use_cache ? session.append(std::span(text).last(1)) : session.append(text);
  }
  result.prefill_s = seconds(start, prefilled);
  result.decode_s = seconds(prefilled, Clock::now());
  return result;
}

#define KATT_INSTANTIATE_GENERATE(Exec)                                 \
  template Generated generate<Exec>(Session<Exec>&, const LlamaConfig&, \
                                    std::span<const std::int64_t>, const GenerateOptions&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_GENERATE)

}  // namespace katt::nn
