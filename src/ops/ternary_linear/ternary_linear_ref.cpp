#include "ops/ternary_linear/ternary_linear_ref.hpp"

#include <algorithm>
#include <cmath>

namespace katt::ternary_linear {

namespace {

/// Σ_i a(i)·b(i) in f64.
template <class A, class B>
double sum_of_products(std::int64_t count, const A& a, const B& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a(i) * b(i);
  return sum;
}

/// The same with factors rounded to the dtype, sums in f32, rounded at the end.
template <class A, class B>
double rounded_sum_of_products(Dtype dtype, std::int64_t count, const A& a, const B& b) {
  float sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sum += round_to(dtype, static_cast<float>(a(i))) * round_to(dtype, static_cast<float>(b(i)));
  }
  return round_to(dtype, sum);
}

}  // namespace

double reference_weight_scale(const HostProblem& problem) {
  double sum = 0;
  for (const float w : problem.weight) sum += std::abs(static_cast<double>(w));
  return std::max(sum / static_cast<double>(problem.weight.size()), 1e-5);
}

int reference_ternary(double weight, double scale) {
  // std::nearbyint rounds half to even in the default mode.
  return static_cast<int>(std::clamp(std::nearbyint(weight / scale), -1.0, 1.0));
}

QuantisedToken reference_token(const HostProblem& problem, std::int64_t token) {
  const auto row = problem.x.subspan(static_cast<std::size_t>(token * problem.in_features),
                                     static_cast<std::size_t>(problem.in_features));
  double largest = 1e-5;
  for (const float value : row) largest = std::max(largest, std::abs(static_cast<double>(value)));
  QuantisedToken result{127.0 / largest, {}};
  for (const float value : row) {
    result.values.push_back(
        static_cast<int>(std::clamp(std::nearbyint(127.0 * value / largest), -128.0, 127.0)));
  }
  return result;
}

Reference::Reference(const HostProblem& problem)
    : problem_(problem), weight_scale_(reference_weight_scale(problem)) {
  for (const float w : problem.weight) {
    ternary_.push_back(static_cast<std::int8_t>(reference_ternary(w, weight_scale_)));
  }
  for (std::int64_t t = 0; t < problem.tokens; ++t) tokens_.push_back(reference_token(problem, t));
}

double Reference::x(std::int64_t token, std::int64_t column) const {
  const QuantisedToken& row = tokens_[static_cast<std::size_t>(token)];
  return row.values[static_cast<std::size_t>(column)] / row.scale;
}

double Reference::weight(std::int64_t feature, std::int64_t column) const {
  return ternary_[static_cast<std::size_t>(feature * problem_.in_features + column)] *
         weight_scale_;
}

double Reference::out(std::int64_t token, std::int64_t feature) const {
  return sum_of_products(
      problem_.in_features, [&](std::int64_t i) { return x(token, i); },
      [&](std::int64_t i) { return weight(feature, i); });
}

double Reference::dx(std::int64_t token, std::int64_t column) const {
  return sum_of_products(
      problem_.out_features,
      [&](std::int64_t o) {
        return static_cast<double>(
            problem_.dout[static_cast<std::size_t>(token * problem_.out_features + o)]);
      },
      [&](std::int64_t o) { return weight(o, column); });
}

double Reference::dweight(std::int64_t feature, std::int64_t column) const {
  return sum_of_products(
      problem_.tokens,
      [&](std::int64_t t) {
        return static_cast<double>(
            problem_.dout[static_cast<std::size_t>(t * problem_.out_features + feature)]);
      },
      [&](std::int64_t t) { return x(t, column); });
}

double Reference::unfused_out(std::int64_t token, std::int64_t feature, Dtype dtype) const {
  return rounded_sum_of_products(
      dtype, problem_.in_features, [&](std::int64_t i) { return x(token, i); },
      [&](std::int64_t i) { return weight(feature, i); });
}

double Reference::unfused_dx(std::int64_t token, std::int64_t column, Dtype dtype) const {
  return rounded_sum_of_products(
      dtype, problem_.out_features,
      [&](std::int64_t o) {
        return problem_.dout[static_cast<std::size_t>(token * problem_.out_features + o)];
      },
      [&](std::int64_t o) { return weight(o, column); });
}

double Reference::unfused_dweight(std::int64_t feature, std::int64_t column, Dtype dtype) const {
  return rounded_sum_of_products(
      dtype, problem_.tokens,
      [&](std::int64_t t) {
        return problem_.dout[static_cast<std::size_t>(t * problem_.out_features + feature)];
      },
      [&](std::int64_t t) { return x(t, column); });
}

}  // namespace katt::ternary_linear
