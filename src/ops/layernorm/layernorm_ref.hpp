#pragma once

#include "op/reference/expected.hpp"
#include "op/reference/problem.hpp"

/// Float64 reference of layer normalisation on the host. Shares no code with the kernels.
namespace katt::layernorm {

/// Rows of out, or of dx, dweight and dbias: exact, and as an unfused implementation computes them,
/// in f32, with x̂, the products with it and the results rounded to the dtype.
[[nodiscard]] testing::Expected expected(const testing::Problem& problem);

}  // namespace katt::layernorm
