#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.hpp"

/// Float64 reference of cross-entropy on the host, token by token. Shares no code with the kernels.
namespace katt::cross_entropy {

/// A problem in host memory: dense row-major logits (tokens, vocab), already rounded to the dtype
/// under test, and one target a token.
struct HostProblem {
  std::int64_t tokens = 0, vocab = 0;
  std::span<const float> logits;
  std::span<const std::int64_t> targets;
  std::int64_t ignore_index = -100;
};

/// log Σ_v exp logits(token, v).
[[nodiscard]] double reference_lse(const HostProblem& problem, std::int64_t token);

/// Tokens that count.
[[nodiscard]] std::int64_t reference_count(const HostProblem& problem);

/// Mean loss over the tokens that count; NaN where none does.
[[nodiscard]] double reference_loss(const HostProblem& problem);

/// Row `token` of dlogits for dloss = 1.
[[nodiscard]] std::vector<double> reference_dlogits(const HostProblem& problem, std::int64_t token);

/// The results of the unfused form in `dtype` for one token: its loss, from a log-probability
/// rounded to the dtype, and its row of dlogits, from probabilities rounded to the dtype.
struct UnfusedToken {
  double loss = 0;
  std::vector<double> dlogits;
};
[[nodiscard]] UnfusedToken unfused_token(const HostProblem& problem, std::int64_t token,
                                         Dtype dtype);

}  // namespace katt::cross_entropy
