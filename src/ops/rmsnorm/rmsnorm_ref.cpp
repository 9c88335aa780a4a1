#include "ops/rmsnorm/rmsnorm_ref.hpp"

#include <algorithm>
#include <cmath>

#include "op/reference/precision.hpp"

namespace katt::rmsnorm {

namespace {

using testing::Exactly;
using testing::row_of;
using testing::Unfused;

struct HostProblem {
  explicit HostProblem(const testing::Problem& p)
      : hidden(p.extent("hidden")),
        dtype(p.dtype),
        x(p.floats("x")),
        weight(p.floats("weight")),
        residual(p.floats("residual")),
        dout(p.floats("dout")),
        dresidual_out(p.floats("dresidual_out")),
        tokens(p.extent("tokens")),
        eps(p.parameter("eps")) {}

  std::int64_t hidden;
  Dtype dtype;  ///< to which x + residual is rounded
  std::span<const float> x, weight, residual, dout, dresidual_out;
  std::int64_t tokens;
  double eps;
};

std::vector<float> summed(const HostProblem& p, std::int64_t row) {
  return summed_row(p.x, p.residual, p.hidden, row, p.dtype);
}

template <class Way>
ForwardRow forward(const HostProblem& p, std::int64_t row, const Way& stored) {
  using Real = typename Way::Real;
  const std::vector<float> h = summed(p, row);
  const auto rstd = reference_rstd<Real>(h, p.eps);
  ForwardRow result{{h.begin(), h.end()}, {}};
  for (std::size_t j = 0; j < h.size(); ++j) {
    const Real normal = stored(static_cast<Real>(h[j]) * rstd);
    result.out.push_back(stored(normal * static_cast<Real>(p.weight[j])));
  }
  return result;
}

template <class Way>
Gradients backward(const HostProblem& p, std::span<const std::int64_t> rows,
                   std::span<const std::int64_t> columns, const Way& stored) {
  using Real = typename Way::Real;
  Gradients result;
  for (const std::int64_t row : rows) {
    const std::vector<float> h = summed(p, row);
    const auto rstd = reference_rstd<Real>(h, p.eps);
    const auto dout = row_of(p.dout, p.hidden, row);
    const auto g = [&](std::size_t j) {
      return stored(static_cast<Real>(dout[j]) * static_cast<Real>(p.weight[j]));
    };
    const auto normal = [&](std::size_t j) { return stored(static_cast<Real>(h[j]) * rstd); };
    Real mean = 0;
    for (std::size_t j = 0; j < h.size(); ++j) mean += g(j) * normal(j);
    mean /= static_cast<Real>(p.hidden);
    std::vector<double> dx;
    for (std::size_t j = 0; j < h.size(); ++j) {
      Real value = stored(rstd * (g(j) - normal(j) * mean));
      if (!p.dresidual_out.empty()) {
        value = stored(value + static_cast<Real>(row_of(p.dresidual_out, p.hidden, row)[j]));
      }
      dx.push_back(value);
      result.largest_term =
          std::max(result.largest_term, std::abs(static_cast<double>(rstd * g(j))));
    }
    result.dx.push_back(std::move(dx));
  }
  std::vector<Real> sums(columns.size(), Real{0});
  for (std::int64_t row = 0; row < p.tokens && !columns.empty(); ++row) {
    const std::vector<float> h = summed(p, row);
    const auto rstd = reference_rstd<Real>(h, p.eps);
    const auto dout = row_of(p.dout, p.hidden, row);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const auto j = static_cast<std::size_t>(columns[c]);
      sums[c] += stored(static_cast<Real>(dout[j]) * stored(static_cast<Real>(h[j]) * rstd));
    }
  }
  for (const Real sum : sums) result.dweight.push_back(stored(sum));
  return result;
}

}  // namespace

std::vector<float> summed_row(std::span<const float> x, std::span<const float> residual,
                              std::int64_t hidden, std::int64_t row, Dtype dtype) {
  const auto own = row_of(x, hidden, row);
  std::vector<float> h(own.begin(), own.end());
  if (residual.empty()) return h;
  const auto added = row_of(residual, hidden, row);
  for (std::size_t j = 0; j < h.size(); ++j) h[j] = round_to(dtype, own[j] + added[j]);
  return h;
}

ForwardRow reference_forward(const testing::Problem& problem, std::int64_t row) {
  return forward(HostProblem(problem), row, Exactly{});
}

ForwardRow unfused_forward(const testing::Problem& problem, std::int64_t row) {
  return forward(HostProblem(problem), row, Unfused{problem.dtype});
}

Gradients reference_backward(const testing::Problem& problem, std::span<const std::int64_t> rows,
                             std::span<const std::int64_t> columns) {
  return backward(HostProblem(problem), rows, columns, Exactly{});
}

Gradients unfused_backward(const testing::Problem& problem, std::span<const std::int64_t> rows,
                           std::span<const std::int64_t> columns) {
  return backward(HostProblem(problem), rows, columns, Unfused{problem.dtype});
}

}  // namespace katt::rmsnorm
