#include "ops/rmsnorm_linear/rmsnorm_linear_ref.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "op/reference/precision.hpp"
#include "ops/rmsnorm/rmsnorm_ref.hpp"

namespace katt::rmsnorm_linear {

namespace {

using testing::Exactly;
using testing::row_of;
using testing::Unfused;

struct HostProblem {
  explicit HostProblem(const testing::Problem& p)
      : tokens(p.extent("tokens")),
        hidden(p.extent("hidden")),
        out_features(p.extent("out_features")),
        dtype(p.dtype),
        x(p.floats("x")),
        norm_weight(p.floats("norm_weight")),
        weight(p.floats("weight")),
        residual(p.floats("residual")),
        dout(p.floats("dout")),
        dresidual_out(p.floats("dresidual_out")),
        eps(p.parameter("eps")) {}

  std::int64_t tokens, hidden, out_features;
  Dtype dtype;  ///< to which x + residual, and unfused values, are rounded
  std::span<const float> x, norm_weight, weight, residual, dout, dresidual_out;
  double eps;
};

/// Element (row, column) of a dense matrix.
float at(std::span<const float> matrix, std::int64_t columns, std::int64_t row,
         std::int64_t column) {
  return matrix[static_cast<std::size_t>(row * columns + column)];
}

std::vector<float> summed(const HostProblem& p, std::int64_t token) {
  return rmsnorm::summed_row(p.x, p.residual, p.hidden, token, p.dtype);
}

template <class Real>
Real rstd_of(const HostProblem& p, std::span<const float> h) {
  return rmsnorm::reference_rstd<Real>(h, p.eps);
}

/// rstd of every token.
template <class Real>
std::vector<Real> all_rstd(const HostProblem& p) {
  std::vector<Real> all;
  for (std::int64_t t = 0; t < p.tokens; ++t) all.push_back(rstd_of<Real>(p, summed(p, t)));
  return all;
}

template <class Mode>
std::vector<double> out_row(const HostProblem& p, std::int64_t token, const Mode& stored) {
  using Real = typename Mode::Real;
  const std::vector<float> h = summed(p, token);
  const auto rstd = rstd_of<Real>(p, h);
  std::vector<Real> y;
  for (std::size_t j = 0; j < h.size(); ++j) {
    const Real normal = stored(static_cast<Real>(h[j]) * rstd);
    y.push_back(stored(normal * static_cast<Real>(p.norm_weight[j])));
  }
  std::vector<double> out;
  for (std::int64_t o = 0; o < p.out_features; ++o) {
    Real sum = 0;
    for (std::size_t j = 0; j < y.size(); ++j) {
      sum += y[j] * static_cast<Real>(row_of(p.weight, p.hidden, o)[j]);
    }
    out.push_back(static_cast<double>(stored(sum)));
  }
  return out;
}

/// dy(t, j)
template <class Mode>
auto dy_of(const HostProblem& p, std::int64_t token, std::int64_t column, const Mode& stored) {
  using Real = typename Mode::Real;
  Real sum = 0;
  for (std::int64_t o = 0; o < p.out_features; ++o) {
    sum += static_cast<Real>(at(p.dout, p.out_features, token, o)) *
           static_cast<Real>(at(p.weight, p.hidden, o, column));
  }
  return stored(sum);
}

template <class Mode>
std::vector<double> dx_row(const HostProblem& p, std::int64_t token, const Mode& stored,
                           double& largest_term) {
  using Real = typename Mode::Real;
  const std::vector<float> h = summed(p, token);
  const auto rstd = rstd_of<Real>(p, h);
  std::vector<Real> g;
  std::vector<Real> normal;
  Real mean = 0;
  for (std::size_t j = 0; j < h.size(); ++j) {
    const Real dy = dy_of(p, token, static_cast<std::int64_t>(j), stored);
    g.push_back(stored(dy * static_cast<Real>(p.norm_weight[j])));
    normal.push_back(stored(static_cast<Real>(h[j]) * rstd));
    mean += g[j] * normal[j];
    largest_term = std::max(largest_term, std::abs(static_cast<double>(rstd * g[j])));
  }
  mean /= static_cast<Real>(p.hidden);
  std::vector<double> dx;
  for (std::size_t j = 0; j < h.size(); ++j) {
    Real value = stored(rstd * (g[j] - normal[j] * mean));
    if (!p.dresidual_out.empty()) {
      value = stored(value + static_cast<Real>(row_of(p.dresidual_out, p.hidden, token)[j]));
    }
    dx.push_back(static_cast<double>(value));
  }
  return dx;
}

template <class Mode>
std::vector<double> dnorm_weight_of(const HostProblem& p, std::span<const std::int64_t> columns,
                                    const Mode& stored) {
  using Real = typename Mode::Real;
  const std::vector<Real> rstd = all_rstd<Real>(p);
  std::vector<double> sums;
  for (const std::int64_t j : columns) {
    Real sum = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t) {
      const float h = at(p.x, p.hidden, t, j);
      const Real normal = stored(static_cast<Real>(h) * rstd[static_cast<std::size_t>(t)]);
      sum += stored(dy_of(p, t, j, stored) * normal);
    }
    sums.push_back(static_cast<double>(stored(sum)));
  }
  return sums;
}

template <class Mode>
std::vector<double> dweight_of(const HostProblem& p, std::span<const std::int64_t> places,
                               const Mode& stored) {
  using Real = typename Mode::Real;
  const std::vector<Real> rstd = all_rstd<Real>(p);
  std::vector<double> sums;
  for (const std::int64_t place : places) {
    const std::int64_t j = place % p.hidden;
    const auto gain = static_cast<Real>(p.norm_weight[static_cast<std::size_t>(j)]);
    Real sum = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t) {
      const float h = at(p.x, p.hidden, t, j);
      const Real normal = stored(static_cast<Real>(h) * rstd[static_cast<std::size_t>(t)]);
      sum += static_cast<Real>(at(p.dout, p.out_features, t, place / p.hidden)) *
             stored(normal * gain);
    }
    sums.push_back(static_cast<double>(stored(sum)));
  }
  return sums;
}

/// f of the problem in both ways.
template <class F>
ReferenceValues in_both_ways(const testing::Problem& problem, const F& f) {
  const HostProblem p(problem);
  return {f(p, Exactly{}), f(p, Unfused{p.dtype})};
}

}  // namespace

std::vector<double> reference_sum(const testing::Problem& problem, std::int64_t token) {
  const std::vector<float> h = summed(HostProblem(problem), token);
  return {h.begin(), h.end()};
}

ReferenceValues reference_out(const testing::Problem& problem, std::int64_t token) {
  return in_both_ways(
      problem, [&](const HostProblem& p, const auto& stored) { return out_row(p, token, stored); });
}

ReferenceValues reference_dx(const testing::Problem& problem, std::int64_t token) {
  double largest_term = 0;
  ReferenceValues values = in_both_ways(problem, [&](const HostProblem& p, const auto& stored) {
    return dx_row(p, token, stored, largest_term);
  });
  values.largest_term = largest_term;
  return values;
}

ReferenceValues reference_dnorm_weight(const testing::Problem& problem,
                                       std::span<const std::int64_t> columns) {
  return in_both_ways(problem, [&](const HostProblem& p, const auto& stored) {
    return dnorm_weight_of(p, columns, stored);
  });
}

ReferenceValues reference_dweight(const testing::Problem& problem,
                                  std::span<const std::int64_t> places) {
  return in_both_ways(problem, [&](const HostProblem& p, const auto& stored) {
    return dweight_of(p, places, stored);
  });
}

}  // namespace katt::rmsnorm_linear
