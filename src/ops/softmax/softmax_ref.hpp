#pragma once

#include <span>
#include <vector>

#include "core/dtype.hpp"

/// Float64 reference of the softmax of one row on the host. Shares no code with the kernels.
namespace katt::softmax {

/// exp(x − lse).
[[nodiscard]] std::vector<double> reference_row(std::span<const float> x);

/// dx of the row for the gradient dout.
[[nodiscard]] std::vector<double> reference_gradient(std::span<const float> x,
                                                     std::span<const float> dout);

/// The same as an unfused implementation in the dtype computes them: exponentials, and backward
/// probabilities, rounded where they are stored, sums in f32.
[[nodiscard]] std::vector<double> unfused_row(std::span<const float> x, Dtype dtype);
[[nodiscard]] std::vector<double> unfused_gradient(std::span<const float> x,
                                                   std::span<const float> dout, Dtype dtype);

}  // namespace katt::softmax
