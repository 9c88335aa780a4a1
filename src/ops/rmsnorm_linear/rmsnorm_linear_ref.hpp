#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "op/reference/problem.hpp"

/// Float64 reference of the norm and the projection after it on the host, by the names of the schema, and by tokens,
/// columns and elements, so that any sample of a large case can be checked. Shares no code with the kernels.
namespace katt::rmsnorm_linear {

/// Values in float64, and as an unfused implementation in the dtype computes them: sums in f32,
/// rounded to the dtype wherever a tensor is stored.
struct ReferenceValues {
  std::vector<double> exact, unfused;
  double largest_term = 0;  ///< of dx: max |rstd · g|, of which it may be a small difference
};

/// h(t, ·), rounded to the dtype by definition: hidden values.
[[nodiscard]] std::vector<double> reference_sum(const testing::Problem& problem,
                                                std::int64_t token);
/// out(t, ·): out_features values.
[[nodiscard]] ReferenceValues reference_out(const testing::Problem& problem, std::int64_t token);
/// dx(t, ·): hidden values.
[[nodiscard]] ReferenceValues reference_dx(const testing::Problem& problem, std::int64_t token);
/// dnorm_weight of these columns.
[[nodiscard]] ReferenceValues reference_dnorm_weight(const testing::Problem& problem,
                                                     std::span<const std::int64_t> columns);
/// dweight at these places, row-major.
[[nodiscard]] ReferenceValues reference_dweight(const testing::Problem& problem,
                                                std::span<const std::int64_t> places);

}  // namespace katt::rmsnorm_linear
