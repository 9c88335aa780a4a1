#include "ops/cross_entropy/cross_entropy_ref.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "op/reference/precision.hpp"

namespace katt::cross_entropy {

namespace {

std::span<const float> row_of(const HostProblem& p, std::int64_t token) {
  return testing::row_of(p.logits, p.vocab, token);
}

std::int64_t target_of(const HostProblem& p, std::int64_t token) {
  return p.targets[static_cast<std::size_t>(token)];
}

}  // namespace

double reference_lse(const HostProblem& problem, std::int64_t token) {
  const auto row = row_of(problem, token);
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<double>(x) - largest);
  return largest + std::log(sum);
}

std::int64_t reference_count(const HostProblem& problem) {
  return std::count_if(problem.targets.begin(), problem.targets.end(),
                       [&](std::int64_t target) { return target != problem.ignore_index; });
}

double reference_loss(const HostProblem& problem) {
  double sum = 0;
  for (std::int64_t t = 0; t < problem.tokens; ++t) {
    const std::int64_t target = target_of(problem, t);
    if (target == problem.ignore_index) continue;
    sum += reference_lse(problem, t) - row_of(problem, t)[static_cast<std::size_t>(target)];
  }
  return sum / static_cast<double>(reference_count(problem));
}

std::vector<double> reference_dlogits(const HostProblem& problem, std::int64_t token) {
  std::vector<double> gradient(static_cast<std::size_t>(problem.vocab), 0.0);
  const std::int64_t target = target_of(problem, token);
  if (target == problem.ignore_index) return gradient;
  const auto row = row_of(problem, token);
  const double lse = reference_lse(problem, token);
  const auto count = static_cast<double>(reference_count(problem));
  for (std::size_t v = 0; v < row.size(); ++v) {
    const double onehot = static_cast<std::int64_t>(v) == target ? 1 : 0;
    gradient[v] = (std::exp(static_cast<double>(row[v]) - lse) - onehot) / count;
  }
  return gradient;
}

UnfusedToken unfused_token(const HostProblem& problem, std::int64_t token, Dtype dtype) {
  UnfusedToken result;
  const auto row = row_of(problem, token);
  const auto count = static_cast<float>(reference_count(problem));
  const std::int64_t target = target_of(problem, token);
  const float largest = *std::max_element(row.begin(), row.end());
  float sum = 0;
  for (const float x : row) sum += std::exp(x - largest);
  result.dlogits.assign(row.size(), 0.0);
  if (target == problem.ignore_index) return result;
  const float log_sum = std::log(sum);
  result.loss = -round_to(dtype, row[static_cast<std::size_t>(target)] - largest - log_sum);
  for (std::size_t v = 0; v < row.size(); ++v) {
    const float probability = round_to(dtype, std::exp(row[v] - largest) / sum);
    const float onehot = static_cast<std::int64_t>(v) == target ? 1.0F : 0.0F;
    result.dlogits[v] = round_to(dtype, (probability - onehot) / count);
  }
  return result;
}

}  // namespace katt::cross_entropy
