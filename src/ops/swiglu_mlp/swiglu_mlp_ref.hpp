#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.hpp"

/// Float64 reference of the SwiGLU layer on the host, by tokens and by intermediate columns, so
/// that any sample of a large case can be checked. Shares no code with the kernels.
namespace katt::swiglu_mlp {

/// A problem in host memory: dense row-major float32 tensors whose values are already rounded to
/// the dtype under test.
struct HostProblem {
  std::int64_t tokens = 0, hidden = 0, intermediate = 0;
  std::span<const float> x;             ///< (tokens, hidden)
  std::span<const float> w_gate, w_up;  ///< (intermediate, hidden)
  std::span<const float> w_down;        ///< (hidden, intermediate)
  std::span<const float> dout;          ///< (tokens, hidden); for gradients
};

/// Values in float64, and as an unfused implementation in the dtype computes them: sums in f32,
/// rounded to the dtype wherever a tensor is stored.
struct ReferenceValues {
  std::vector<double> exact, unfused;
};

/// out(t, ·): hidden values.
[[nodiscard]] ReferenceValues reference_out(const HostProblem& problem, std::int64_t token,
                                            Dtype dtype);
/// dx(t, ·): hidden values.
[[nodiscard]] ReferenceValues reference_dx(const HostProblem& problem, std::int64_t token,
                                           Dtype dtype);

/// The gradients of the weights of one intermediate column f: dw_gate(f, ·), dw_up(f, ·) and
/// dw_down(·, f), hidden values each.
struct ReferenceWeights {
  ReferenceValues dw_gate, dw_up, dw_down;
};
[[nodiscard]] ReferenceWeights reference_weights(const HostProblem& problem, std::int64_t column,
                                                 Dtype dtype);

}  // namespace katt::swiglu_mlp
