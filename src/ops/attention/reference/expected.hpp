#pragma once

#include "core/dtype.hpp"
#include "op/reference/expected.hpp"
#include "ops/attention/reference/float64.hpp"

/// What the outputs of attention are held against: testing::ErrorRule, and a rounding of the
/// largest score in f32, which P repeats; in the backward pass three, since P is made of lse again.
namespace katt::attention {

/// `out` and, unreported, `lse` of a sample of the queries.
[[nodiscard]] testing::Expected expected_rows(const HostProblem& problem, Dtype dtype);

/// `dq`, `dk` and `dv` of all key/value heads of a small problem, of a hashed choice in a large one.
/// Where heads are grouped or scores capped the rule has 3 in place of 2 for its first term, as in
/// FlashAttention-3's tests. dq and dk may differ by two f32 roundings of the terms that they are
/// the difference of, besides.
[[nodiscard]] testing::Expected expected_gradients(const HostProblem& problem, Dtype dtype);

}  // namespace katt::attention
