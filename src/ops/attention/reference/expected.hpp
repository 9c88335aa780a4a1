#pragma once

#include "core/dtype.hpp"
#include "op/reference/expected.hpp"
#include "ops/attention/reference/float64.hpp"

/// The error limits of attention's outputs: testing::ErrorRule, and one rounding of the largest
/// score in f32, which P repeats; in the backward pass three roundings, since P comes from lse
/// again.
namespace katt::attention {

/// `out` and, unreported, `lse` of a sample of the queries.
[[nodiscard]] testing::Expected expected_rows(const HostProblem& problem, Dtype dtype);

/// `dq`, `dk` and `dv` of all key/value heads of a small problem, of a hashed choice in a large
/// one. With grouped heads or capped scores the rule has 3 in place of 2 for its first term, as in
/// FlashAttention-3's tests. Besides, dq and dk may differ by two f32 roundings of the terms of
/// their differences. With `mask_gradient` also `dmask`, of a sample of its rows, by the same rule.
[[nodiscard]] testing::Expected expected_gradients(const HostProblem& problem, Dtype dtype);

}  // namespace katt::attention
