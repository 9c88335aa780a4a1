#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "ops/attention/attention.hpp"

/// Float64 reference of attention on the host, row by row, so that any sample of rows of a large
/// case can be checked without its own memory growing. Shares no code with the kernels or their
/// masks.
namespace katt::attention {

/// One query of a head of a batch entry.
struct QueryIndex {
  std::int64_t batch = 0, head = 0, query = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): a false alarm
  friend auto operator<=>(const QueryIndex&, const QueryIndex&) = default;
};

/// A user's own score rule on one score (own_rule.hpp), with its slope; position: of the query among
/// the keys.
using ExactRule = std::function<double(double score, const QueryIndex& at, double position,
                                       double key, double& slope)>;

/// A problem in host memory: dense row-major float32 tensors whose values are already rounded to
/// the dtype under test. Mask parameters as in MaskArgs.
struct HostProblem {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, seq_q = 0, seq_kv = 0, head_dim = 0;
  std::span<const float> q;     ///< (batch, heads, seq_q, head_dim)
  std::span<const float> k, v;  ///< (batch, kv_heads, seq_kv, head_dim)
  double scale = 0;
  bool causal = false;
  std::int64_t window_left = -1, window_right = -1;
  ScoreArgs score{};              ///< slopes in host memory
  ExactRule rule{};               ///< after those of `score`, where there is one
  std::span<const float> bias{};  ///< (bias_batch, bias_heads, seq_q, seq_kv) or empty
  std::int64_t bias_batch = 1, bias_heads = 1;
  std::span<const std::int64_t> kv_len;      ///< (batch) or empty
  std::span<const std::int64_t> block_mask;  ///< (⌈seq_q/size⌉, ⌈seq_kv/size⌉) or empty
  std::int64_t block_size = 0;
  bool mask_gradient = false;  ///< true: the gradient of the bias is asked for
  std::span<const float>
      dout;  ///< (batch, heads, seq_q, head_dim), or empty without a backward pass
};

/// Output row (head_dim) and log-sum-exp of one query.
struct ReferenceRow {
  std::vector<double> out;
  double lse = 0;
  /// Σ P·T, where T bounds what a score is a sum of: the larger of scale · Σ |q·k| and |score|, and
  /// |bias|; 0 where the bias is so large that it is the score. A rounding of that size moves lse, and
  /// P relative to itself, by about 2^−24 of it.
  double terms = 0;
};

/// softmax(S)·V and lse of one query in float64, by the definition, but that a score is its bias where
/// nothing else is left of it in f32.
[[nodiscard]] ReferenceRow reference_row(const HostProblem& problem, const QueryIndex& index);

/// The same row as an unfused implementation in `dtype` computes it: scores and probabilities
/// rounded to the dtype where they are stored, sums in f32. Its distance from reference_row() is
/// the error that a fused kernel is allowed twice of (testing::ErrorRule).
[[nodiscard]] ReferenceRow unfused_row(const HostProblem& problem, const QueryIndex& index,
                                       Dtype dtype);

/// Gradients of one key/value head of one batch entry and of the query heads that share it,
/// row-major.
struct ReferenceGradients {
  std::vector<double> dq;      ///< (heads / kv_heads, seq_q, head_dim)
  std::vector<double> dk, dv;  ///< (seq_kv, head_dim)
  double largest_lse = 0;      ///< max |lse| over the queries, but those whose lse is a bias alone
  /// Bounds of Σ P·|Δ|·|k| and Σ P·|Δ|·|q|, with |Δ| for Σ |dout · out|: dS = P ∘ (dP − Δ) is a
  /// difference, and dq and dk may be small beside what they are the difference of.
  double dq_terms = 0, dk_terms = 0;
};

/// Gradients of Σ dout ∘ out in float64, by the chain rule through the definition.
[[nodiscard]] ReferenceGradients reference_gradients(const HostProblem& problem, std::int64_t batch,
                                                     std::int64_t kv_head);

/// The same gradients as an unfused implementation in `dtype` computes them: scores, P, dP, dS and
/// out rounded to the dtype where they are stored, sums and lse in f32; P = exp(S − lse), since lse
/// is what a backward pass has of the forward pass.
[[nodiscard]] ReferenceGradients unfused_gradients(const HostProblem& problem, std::int64_t batch,
                                                   std::int64_t kv_head, Dtype dtype);

/// The gradient of a row of the bias: that of `query` in entry and head of the bias.
struct MaskGradientRow {
  std::vector<double> gradient;  ///< (seq_kv)
  double largest_lse = 0;        ///< as in ReferenceGradients, over the rows that are summed
  double terms = 0;              ///< bound of Σ P·|Δ|
};

/// Σ P ∘ (dP − Δ) in float64 over what the bias is broadcast to.
[[nodiscard]] MaskGradientRow reference_mask_row(const HostProblem& problem,
                                                 const QueryIndex& index);

/// The same sum as an unfused implementation in `dtype` computes it.
[[nodiscard]] MaskGradientRow unfused_mask_row(const HostProblem& problem, const QueryIndex& index,
                                               Dtype dtype);

}  // namespace katt::attention
