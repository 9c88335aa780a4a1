#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.hpp"

/// Float64 reference of linear on the host, element by element, so that any sample of a large case
/// can be checked. Shares no code with the kernels.
namespace katt::linear {

/// A problem in host memory: dense row-major float32 tensors whose values are already rounded to
/// the dtype under test.
struct HostProblem {
  std::int64_t tokens = 0, in_features = 0, out_features = 0;
  std::span<const float> x;       ///< (tokens, in_features)
  std::span<const float> weight;  ///< (out_features, in_features)
  std::span<const float> bias;    ///< (out_features) or empty
  std::span<const float> dout;    ///< (tokens, out_features); for gradients
};

/// One element, in float64 and as an unfused implementation in the dtype computes it: sums in f32,
/// rounded to the dtype wherever a tensor is stored.
struct ReferenceValue {
  double exact = 0;
  double unfused = 0;
};

/// out(t, o)
[[nodiscard]] ReferenceValue reference_out(const HostProblem& problem, std::int64_t token,
                                           std::int64_t out_feature, Dtype dtype);
/// dx(t, i)
[[nodiscard]] ReferenceValue reference_dx(const HostProblem& problem, std::int64_t token,
                                          std::int64_t in_feature, Dtype dtype);
/// dweight(o, i)
[[nodiscard]] ReferenceValue reference_dweight(const HostProblem& problem, std::int64_t out_feature,
                                               std::int64_t in_feature, Dtype dtype);
/// dbias(o)
[[nodiscard]] ReferenceValue reference_dbias(const HostProblem& problem, std::int64_t out_feature,
                                             Dtype dtype);

}  // namespace katt::linear
