#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "op/reference/precision.hpp"
#include "op/reference/problem.hpp"

/// Float64 reference of RMS normalisation on the host, row by row, by the names of the schema. Shares no code with the
/// kernels.
namespace katt::rmsnorm {

/// h of a row: x, or x + residual rounded to the dtype, which is part of the definition. `residual`
/// may be empty.
[[nodiscard]] std::vector<float> summed_row(std::span<const float> x,
                                            std::span<const float> residual, std::int64_t hidden,
                                            std::int64_t row, Dtype dtype);

/// 1 / √(mean h² + eps).
template <class Real>
[[nodiscard]] Real reference_rstd(std::span<const float> h, double eps) {
  return Real{1} /
         std::sqrt(testing::dot<Real>(h, h) / static_cast<Real>(h.size()) + static_cast<Real>(eps));
}

/// One row of the forward pass.
struct ForwardRow {
  std::vector<double> sum;  ///< h = x + residual, rounded to the dtype
  std::vector<double> out;
};

/// h, and h · weight / √(mean h² + eps) in float64, by the definition.
[[nodiscard]] ForwardRow reference_forward(const testing::Problem& problem, std::int64_t row);

/// The same row as an unfused implementation computes it: in f32, h · rstd rounded to the dtype.
[[nodiscard]] ForwardRow unfused_forward(const testing::Problem& problem, std::int64_t row);

/// Gradients of some rows and columns. dx is of x, h where there is a residual.
struct Gradients {
  std::vector<std::vector<double>> dx;  ///< (rows asked for, hidden)
  std::vector<double> dweight;          ///< (columns asked for)
  double largest_term = 0;              ///< max |rstd · g|, of which dx may be a small difference
};

/// Gradients in float64, by the definition. Reads every row for the sums of dweight.
[[nodiscard]] Gradients reference_backward(const testing::Problem& problem,
                                           std::span<const std::int64_t> rows,
                                           std::span<const std::int64_t> columns);

/// The same as an unfused implementation computes them: in f32, h · rstd and the products with dout
/// rounded to the dtype.
[[nodiscard]] Gradients unfused_backward(const testing::Problem& problem,
                                         std::span<const std::int64_t> rows,
                                         std::span<const std::int64_t> columns);

}  // namespace katt::rmsnorm
