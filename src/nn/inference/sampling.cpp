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
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  if (options_.top_k > 0 && options_.top_k < static_cast<std::int64_t>(candidates_.size())) {
    std::ranges::nth_element(candidates_, candidates_.begin() + options_.top_k, before);
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
  }
  double total = 0;
  for (auto& [weight, token] : candidates_) total += weight = std::exp(weight);
  // Few of a vocabulary are looked at, so only those are sorted, four times as many each time.
  std::size_t sorted = 0;
  const auto candidate = [&](std::size_t i) {
    if (i == sorted) {
      const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
      sorted = std::min(candidates_.size(), std::max<std::size_t>(64, 4 * sorted));
      const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(sorted);
      std::nth_element(begin, end, candidates_.end(), before);
      std::sort(begin, end, before);
    }
    return candidates_[i];
  };
  double kept = total;
  std::size_t count = candidates_.size();
  if (options_.top_p < 1.0) {
    kept = candidate(0).first;
    count = 1;
    while (count < candidates_.size() && kept < options_.top_p * total) {
      kept += candidate(count++).first;
    }
  }
  double left = testing::uniform(options_.seed, drawn_++) * kept;
  for (std::size_t i = 0; i < count; ++i) {
    left -= candidate(i).first;
    if (left < 0) return candidates_[i].second;
  }
  return candidates_[count - 1].second;
}

}  // namespace katt::nn
