#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.hpp"

/// Float64 reference of linear_cross_entropy on the host, by rows of tokens and of the vocabulary,
/// so that a sample of a large case can be checked. Shares no code with the kernels.
namespace katt::linear_cross_entropy {

/// A problem in host memory: dense row-major tensors whose values are already rounded to the dtype
/// under test.
struct HostProblem {
  std::int64_t tokens = 0, hidden_size = 0, vocab = 0;
  std::span<const float> hidden;          ///< (tokens, hidden_size)
  std::span<const float> weight;          ///< (vocab, hidden_size)
  std::span<const std::int64_t> targets;  ///< (tokens)
  std::int64_t ignore_index = -100;
};

/// How stored values are rounded: not at all (float64), or as an unfused implementation in a dtype
/// stores logits and their gradients, with sums in f32.
struct Precision {
  bool exact = true;
  Dtype dtype = Dtype::f32;
};

/// One logit.
[[nodiscard]] double reference_logit(const HostProblem& problem, std::int64_t token,
                                     std::int64_t column, const Precision& precision = {});

/// log Σ_v exp logits(token, v).
[[nodiscard]] double reference_lse(const HostProblem& problem, std::int64_t token,
                                   const Precision& precision = {});

/// Mean loss over the tokens that count; NaN where none does.
[[nodiscard]] double reference_loss(const HostProblem& problem);

/// Row `token` of dhidden for dloss = 1.
[[nodiscard]] std::vector<double> reference_dhidden(const HostProblem& problem, std::int64_t token,
                                                    const Precision& precision = {});

/// Row `column` of dweight for dloss = 1, with lse(t) of every token given.
[[nodiscard]] std::vector<double> reference_dweight(const HostProblem& problem, std::int64_t column,
                                                    std::span<const double> lse,
                                                    const Precision& precision = {});

}  // namespace katt::linear_cross_entropy
