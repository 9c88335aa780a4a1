#include "ops/linear_cross_entropy/linear_cross_entropy_ref.hpp"

#include <algorithm>
#include <cmath>

#include "op/reference/precision.hpp"

namespace katt::linear_cross_entropy {

namespace {

using testing::dot;
using testing::row_of;

double counted(const HostProblem& p) {
  return static_cast<double>(
      std::count_if(p.targets.begin(), p.targets.end(),
                    [&](std::int64_t target) { return target != p.ignore_index; }));
}

double rounded(const Precision& precision, double value) {
  return precision.exact ? value : round_to(precision.dtype, static_cast<float>(value));
}

/// sum += factor · row, in f64, or in f32 where the precision is not exact.
void add_scaled(std::vector<double>& sum, double factor, std::span<const float> row,
                const Precision& precision) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double next = sum[i] + factor * static_cast<double>(row[i]);
    sum[i] = precision.exact ? next : static_cast<double>(static_cast<float>(next));
  }
}

/// The gradient of one logit, with lse of its token and the number of tokens that count.
double logit_gradient(const HostProblem& p, std::int64_t token, std::int64_t column, double lse,
                      double count, const Precision& precision) {
  const std::int64_t target = p.targets[static_cast<std::size_t>(token)];
  if (target == p.ignore_index) return 0;
  const double probability = std::exp(reference_logit(p, token, column, precision) - lse);
  const double onehot = target == column ? 1 : 0;
  return rounded(precision, (probability - onehot) / count);
}

void round_all(std::vector<double>& values, const Precision& precision) {
  for (double& value : values) value = rounded(precision, value);
}

}  // namespace

double reference_logit(const HostProblem& problem, std::int64_t token, std::int64_t column,
                       const Precision& precision) {
  const auto hidden = row_of(problem.hidden, problem.hidden_size, token);
  const auto weight = row_of(problem.weight, problem.hidden_size, column);
  if (precision.exact) return dot<double>(hidden, weight);
  return rounded(precision, dot<float>(hidden, weight));
}

double reference_lse(const HostProblem& problem, std::int64_t token, const Precision& precision) {
  std::vector<double> logits;
  for (std::int64_t v = 0; v < problem.vocab; ++v) {
    logits.push_back(reference_logit(problem, token, v, precision));
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

double reference_loss(const HostProblem& problem) {
  double sum = 0;
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    const std::int64_t target = problem.targets[static_cast<std::size_t>(t)];
    if (target == problem.ignore_index) continue;
    sum += reference_lse(problem, t) - reference_logit(problem, t, target);
  }
  return sum / counted(problem);
}

std::vector<double> reference_dhidden(const HostProblem& problem, std::int64_t token,
                                      const Precision& precision) {
  std::vector<double> gradient(static_cast<std::size_t>(problem.hidden_size), 0.0);
  const double lse = reference_lse(problem, token, precision);
  const double count = counted(problem);
  for (std::int64_t v = 0; v < problem.vocab; ++v) {
    add_scaled(gradient, logit_gradient(problem, token, v, lse, count, precision),
               row_of(problem.weight, problem.hidden_size, v), precision);
  }
  round_all(gradient, precision);
  return gradient;
}

std::vector<double> reference_dweight(const HostProblem& problem, std::int64_t column,
                                      std::span<const double> lse, const Precision& precision) {
  std::vector<double> gradient(static_cast<std::size_t>(problem.hidden_size), 0.0);
  const double count = counted(problem);
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    add_scaled(
        gradient,
        logit_gradient(problem, t, column, lse[static_cast<std::size_t>(t)], count, precision),
        row_of(problem.hidden, problem.hidden_size, t), precision);
  }
  round_all(gradient, precision);
  return gradient;
}

}  // namespace katt::linear_cross_entropy
