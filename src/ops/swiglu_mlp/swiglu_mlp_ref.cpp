#include "ops/swiglu_mlp/swiglu_mlp_ref.hpp"

#include <array>
#include <cstddef>
#include <utility>

#include "ops/swiglu/swiglu_ref.hpp"

namespace katt::swiglu_mlp {

namespace {

/// Float64 throughout.
struct Exact {
  using Real = double;
  static double stored(double value) { return value; }
  static swiglu::ReferenceElement element(double gate, double up, double dh) {
    return swiglu::reference_element(gate, up, dh);
  }
};

/// Sums in f32; what is stored is rounded to the dtype.
struct Unfused {
  using Real = float;
  Dtype dtype;
  float stored(float value) const { return round_to(dtype, value); }
  swiglu::ReferenceElement element(float gate, float up, float dh) const {
    return swiglu::unfused_element(gate, up, dh, dtype);
  }
};

std::span<const float> row(std::span<const float> matrix, std::int64_t columns,
                           std::int64_t index) {
  return matrix.subspan(static_cast<std::size_t>(index * columns),
                        static_cast<std::size_t>(columns));
}

template <class Real>
Real dot(std::span<const float> a, std::span<const float> b) {
  Real sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += static_cast<Real>(a[i]) * static_cast<Real>(b[i]);
  return sum;
}

/// sum += factor · values
template <class Real, class Factor>
void add_scaled(std::vector<Real>& sum, Factor factor, std::span<const float> values) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] += static_cast<Real>(factor) * static_cast<Real>(values[i]);
  }
}

template <class Mode>
std::vector<double> stored(const Mode& mode, const std::vector<typename Mode::Real>& values) {
  std::vector<double> result;
  for (const auto value : values) result.push_back(static_cast<double>(mode.stored(value)));
  return result;
}

/// h, dgate and dup of one token for every intermediate column.
template <class Mode>
std::vector<swiglu::ReferenceElement> elements_of_token(const HostProblem& p, const Mode& mode,
                                                        std::int64_t token) {
  using Real = typename Mode::Real;
  const auto x = row(p.x, p.hidden, token);
  std::vector<Real> dh(static_cast<std::size_t>(p.intermediate), Real{0});
  if (!p.dout.empty()) {
    const auto dout = row(p.dout, p.hidden, token);
    for (std::int64_t i = 0; i < p.hidden; ++i) {
      add_scaled(dh, dout[static_cast<std::size_t>(i)], row(p.w_down, p.intermediate, i));
    }
  }
  std::vector<swiglu::ReferenceElement> elements;
  for (std::int64_t f = 0; f < p.intermediate; ++f) {
    const Real gate = mode.stored(dot<Real>(x, row(p.w_gate, p.hidden, f)));
    const Real up = mode.stored(dot<Real>(x, row(p.w_up, p.hidden, f)));
    elements.push_back(mode.element(gate, up, mode.stored(dh[static_cast<std::size_t>(f)])));
  }
  return elements;
}

template <class Mode>
std::vector<double> out_row(const HostProblem& p, const Mode& mode, std::int64_t token) {
  using Real = typename Mode::Real;
  const auto elements = elements_of_token(p, mode, token);
  std::vector<Real> out;
  for (std::int64_t i = 0; i < p.hidden; ++i) {
    const auto weights = row(p.w_down, p.intermediate, i);
    Real sum = 0;
    for (std::size_t f = 0; f < elements.size(); ++f) {
      sum += static_cast<Real>(elements[f].out) * static_cast<Real>(weights[f]);
    }
    out.push_back(sum);
  }
  return stored(mode, out);
}

template <class Mode>
std::vector<double> dx_row(const HostProblem& p, const Mode& mode, std::int64_t token) {
  using Real = typename Mode::Real;
  const auto elements = elements_of_token(p, mode, token);
  const auto hidden = static_cast<std::size_t>(p.hidden);
  std::vector<Real> by_gate(hidden, Real{0});
  std::vector<Real> by_up(hidden, Real{0});
  for (std::size_t f = 0; f < elements.size(); ++f) {
    const auto at = static_cast<std::int64_t>(f);
    add_scaled(by_gate, elements[f].dgate, row(p.w_gate, p.hidden, at));
    add_scaled(by_up, elements[f].dup, row(p.w_up, p.hidden, at));
  }
  for (std::size_t i = 0; i < hidden; ++i) by_up[i] += mode.stored(by_gate[i]);
  return stored(mode, by_up);
}

/// dw_gate, dw_up and dw_down of one intermediate column, one after the other.
template <class Mode>
std::array<std::vector<double>, 3> weight_rows(const HostProblem& p, const Mode& mode,
                                               std::int64_t column) {
  using Real = typename Mode::Real;
  const auto hidden = static_cast<std::size_t>(p.hidden);
  std::vector<float> down;
  for (std::int64_t i = 0; i < p.hidden; ++i) {
    down.push_back(p.w_down[static_cast<std::size_t>(i * p.intermediate + column)]);
  }
  std::array<std::vector<Real>, 3> sums;
  sums.fill(std::vector<Real>(hidden, Real{0}));
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    const auto x = row(p.x, p.hidden, t);
    const auto dout = row(p.dout, p.hidden, t);
    const auto element = mode.element(mode.stored(dot<Real>(x, row(p.w_gate, p.hidden, column))),
                                      mode.stored(dot<Real>(x, row(p.w_up, p.hidden, column))),
                                      mode.stored(dot<Real>(dout, down)));
    add_scaled(sums[0], element.dgate, x);
    add_scaled(sums[1], element.dup, x);
    add_scaled(sums[2], element.out, dout);
  }
  return {stored(mode, sums[0]), stored(mode, sums[1]), stored(mode, sums[2])};
}

}  // namespace

ReferenceValues reference_out(const HostProblem& problem, std::int64_t token, Dtype dtype) {
  return {out_row(problem, Exact{}, token), out_row(problem, Unfused{dtype}, token)};
}

ReferenceValues reference_dx(const HostProblem& problem, std::int64_t token, Dtype dtype) {
  return {dx_row(problem, Exact{}, token), dx_row(problem, Unfused{dtype}, token)};
}

ReferenceWeights reference_weights(const HostProblem& problem, std::int64_t column, Dtype dtype) {
  auto exact = weight_rows(problem, Exact{}, column);
  auto unfused = weight_rows(problem, Unfused{dtype}, column);
  return {.dw_gate = {std::move(exact[0]), std::move(unfused[0])},
          .dw_up = {std::move(exact[1]), std::move(unfused[1])},
          .dw_down = {std::move(exact[2]), std::move(unfused[2])}};
}

}  // namespace katt::swiglu_mlp
