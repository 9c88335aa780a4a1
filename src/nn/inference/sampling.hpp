#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace katt::nn {

/// Settings of the choice of the next token from logits.
struct SamplingOptions {
  double temperature = 0.0;  ///< 0: the most likely token (greedy), the first of equals
  std::int64_t top_k = 0;    ///< only the k most likely; 0: all
  double top_p = 1.0;        ///< only the fewest whose probabilities sum to p (nucleus sampling,
                             ///< Holtzman et al. 2020, arXiv:1904.09751)
  std::uint64_t seed = 0;    ///< of the random choice; the same seed gives the same tokens

  /// True when the most likely token is taken.
  [[nodiscard]] bool is_greedy() const { return temperature == 0.0; }
};

/// Chooses tokens one after the other; the same seed and logits give the same tokens.
class Sampler {
 public:
  /// Throws InputError for a negative temperature or top_k, and a top_p outside of (0, 1].
  explicit Sampler(const SamplingOptions& options);

  /// The next token for these logits, divided by the temperature, cut to top_k, then to top_p.
  /// They are finite, which Session has seen to.
  std::int64_t pick(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::uint64_t drawn_ = 0;
  std::vector<std::pair<double, std::int64_t>> candidates_;  ///< (logit, then weight; token)
};

}  // namespace katt::nn
