#include "nn/inference/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.hpp"
#include "op/reference/fill.hpp"

namespace katt::nn {

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature)) {
    throw InputError("--temperature: holds " + std::to_string(options.temperature) +
                     ", expected 0 (greedy) or more");
  }
  if (options.top_k < 0) {
    throw InputError("--top-k: holds " + std::to_string(options.top_k) +
                     ", expected 0 (all) or more");
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    throw InputError("--top-p: holds " + std::to_string(options.top_p) +
                     ", expected more than 0, at most 1");
  }
}

std::int64_t Sampler::pick(std::span<const float> logits) {
  if (options_.is_greedy()) {
    return std::ranges::max_element(logits) - logits.begin();
  }
  candidates_.clear();
  const double most = *std::ranges::max_element(logits);
  for (std::size_t token = 0; token < logits.size(); ++token) {
    candidates_.emplace_back((logits[token] - most) / options_.temperature, token);
  }
  // the most likely first; of equals the first
  std::ranges::sort(candidates_, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  if (options_.top_k > 0 && options_.top_k < static_cast<std::int64_t>(candidates_.size())) {
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
  }
  double total = 0;
  for (auto& [weight, token] : candidates_) total += weight = std::exp(weight);
  double kept = 0;
  std::size_t count = 0;
  while (count < candidates_.size() && (count == 0 || kept < options_.top_p * total)) {
    kept += candidates_[count++].first;
  }
  double left = testing::uniform(options_.seed, drawn_++) * kept;
  for (std::size_t i = 0; i < count; ++i) {
    left -= candidates_[i].first;
    if (left < 0) return candidates_[i].second;
  }
  return candidates_[count - 1].second;
}

}  // namespace katt::nn
