#include "ops/swiglu_mlp/swiglu_mlp_ref.hpp"

#include <array>
#include <cstddef>
#include <utility>

#include "op/reference/precision.hpp"
#include "ops/swiglu/swiglu_ref.hpp"

namespace katt::swiglu_mlp {

namespace {

using testing::dot;
using testing::row_of;

struct Exact : testing::Exactly {
  static swiglu::ReferenceElement element(double gate, double up, double dh) {
    return swiglu::reference_element(gate, up, dh);
  }
};

struct Unfused : testing::Unfused {
  swiglu::ReferenceElement element(float gate, float up, float dh) const {
    return swiglu::unfused_element(gate, up, dh, dtype);
  }
};

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
  for (const auto value : values) result.push_back(static_cast<double>(mode(value)));
  return result;
}

/// h, dgate and dup of one token for every intermediate column.
template <class Mode>
std::vector<swiglu::ReferenceElement> elements_of_token(const HostProblem& p, const Mode& mode,
                                                        std::int64_t token) {
  using Real = typename Mode::Real;
  const auto x = row_of(p.x, p.hidden, token);
  std::vector<Real> dh(static_cast<std::size_t>(p.intermediate), Real{0});
  if (!p.dout.empty()) {
    const auto dout = row_of(p.dout, p.hidden, token);
    for (std::int64_t i = 0; i < p.hidden; ++i) {
      add_scaled(dh, dout[static_cast<std::size_t>(i)], row_of(p.w_down, p.intermediate, i));
    }
  }
  std::vector<swiglu::ReferenceElement> elements;
  for (std::int64_t f = 0; f < p.intermediate; ++f) {
    const Real gate = mode(dot<Real>(x, row_of(p.w_gate, p.hidden, f)));
    const Real up = mode(dot<Real>(x, row_of(p.w_up, p.hidden, f)));
    elements.push_back(mode.element(gate, up, mode(dh[static_cast<std::size_t>(f)])));
  }
  return elements;
}

template <class Mode>
std::vector<double> out_row(const HostProblem& p, const Mode& mode, std::int64_t token) {
  using Real = typename Mode::Real;
  const auto elements = elements_of_token(p, mode, token);
  std::vector<Real> out;
  for (std::int64_t i = 0; i < p.hidden; ++i) {
    const auto weights = row_of(p.w_down, p.intermediate, i);
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
    add_scaled(by_gate, elements[f].dgate, row_of(p.w_gate, p.hidden, at));
    add_scaled(by_up, elements[f].dup, row_of(p.w_up, p.hidden, at));
  }
  for (std::size_t i = 0; i < hidden; ++i) by_up[i] += mode(by_gate[i]);
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
    const auto x = row_of(p.x, p.hidden, t);
    const auto dout = row_of(p.dout, p.hidden, t);
    const auto element = mode.element(mode(dot<Real>(x, row_of(p.w_gate, p.hidden, column))),
                                      mode(dot<Real>(x, row_of(p.w_up, p.hidden, column))),
                                      mode(dot<Real>(dout, down)));
    add_scaled(sums[0], element.dgate, x);
    add_scaled(sums[1], element.dup, x);
    add_scaled(sums[2], element.out, dout);
  }
  return {stored(mode, sums[0]), stored(mode, sums[1]), stored(mode, sums[2])};
}

}  // namespace

ReferenceValues reference_out(const HostProblem& problem, std::int64_t token, Dtype dtype) {
  return {out_row(problem, Exact{}, token), out_row(problem, Unfused{{dtype}}, token)};
}

ReferenceValues reference_dx(const HostProblem& problem, std::int64_t token, Dtype dtype) {
  return {dx_row(problem, Exact{}, token), dx_row(problem, Unfused{{dtype}}, token)};
}

ReferenceWeights reference_weights(const HostProblem& problem, std::int64_t column, Dtype dtype) {
  auto exact = weight_rows(problem, Exact{}, column);
  auto unfused = weight_rows(problem, Unfused{{dtype}}, column);
  return {.dw_gate = {std::move(exact[0]), std::move(unfused[0])},
          .dw_up = {std::move(exact[1]), std::move(unfused[1])},
          .dw_down = {std::move(exact[2]), std::move(unfused[2])}};
}

}  // namespace katt::swiglu_mlp
