#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.hpp"

/// Float64 reference of the ternary linear layer on the host, by the formulas of
/// ternary_linear.hpp. Shares no code with the kernels.
namespace katt::ternary_linear {

/// A problem in host memory: dense row-major tensors whose values are already rounded to the dtype
/// under test.
struct HostProblem {
  std::int64_t tokens = 0, in_features = 0, out_features = 0;
  std::span<const float> x;       ///< (tokens, in_features)
  std::span<const float> weight;  ///< (out_features, in_features)
  std::span<const float> dout;    ///< (tokens, out_features); backward only
};

/// s_w.
[[nodiscard]] double reference_weight_scale(const HostProblem& problem);

/// W_q of a weight: −1, 0 or 1.
[[nodiscard]] int reference_ternary(double weight, double scale);

/// One token quantised: s_x and x_q.
struct QuantisedToken {
  double scale = 0;
  std::vector<int> values;
};
[[nodiscard]] QuantisedToken reference_token(const HostProblem& problem, std::int64_t token);

/// Everything that is known of a quantised problem, so that single results are cheap.
class Reference {
 public:
  explicit Reference(const HostProblem& problem);

  [[nodiscard]] double out(std::int64_t token, std::int64_t feature) const;
  [[nodiscard]] double dx(std::int64_t token, std::int64_t column) const;
  [[nodiscard]] double dweight(std::int64_t feature, std::int64_t column) const;

  /// The same with x_q / s_x and W_q · s_w rounded to the dtype, as an unfused implementation
  /// stores them, sums in f32, and the result rounded.
  [[nodiscard]] double unfused_out(std::int64_t token, std::int64_t feature, Dtype dtype) const;
  [[nodiscard]] double unfused_dx(std::int64_t token, std::int64_t column, Dtype dtype) const;
  [[nodiscard]] double unfused_dweight(std::int64_t feature, std::int64_t column,
                                       Dtype dtype) const;

 private:
  [[nodiscard]] double x(std::int64_t token, std::int64_t column) const;
  [[nodiscard]] double weight(std::int64_t feature, std::int64_t column) const;

  HostProblem problem_;
  double weight_scale_;
  std::vector<std::int8_t> ternary_;
  std::vector<QuantisedToken> tokens_;
};

}  // namespace katt::ternary_linear
