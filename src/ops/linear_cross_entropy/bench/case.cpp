#include "ops/linear_cross_entropy/bench/case.hpp"

#include <algorithm>
#include <cmath>

#include "op/adapter.hpp"
#include "op/reference/expected.hpp"
#include "op/reference/of_each.hpp"
#include "op/reference/sample.hpp"

namespace katt::linear_cross_entropy {

namespace {

/// Rows of an output, exact and unfused, and how far an output may be from them.
class Rows {
 public:
  Rows(const char* name, Dtype dtype) : name_(name), rule_(dtype) {}

  void add(std::int64_t row, std::vector<double> exact, const std::vector<double>& unfused) {
    for (std::size_t c = 0; c < exact.size(); ++c) rule_.add(exact[c], unfused[c]);
    rows_.push_back(row);
    exact_.push_back(std::move(exact));
  }

  [[nodiscard]] bench::Errors compare(std::span<const float> got) const {
    testing::Comparison comparison;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::size_t n = exact_[i].size();
      for (std::size_t c = 0; c < n; ++c) {
        comparison.add(name_, {rows_[i], static_cast<std::int64_t>(c)},
                       got[static_cast<std::size_t>(rows_[i]) * n + c], exact_[i][c],
                       rule_.limit());
      }
    }
    return comparison.result();
  }

 private:
  const char* name_;
  testing::ErrorRule rule_;
  std::vector<std::int64_t> rows_;
  std::vector<std::vector<double>> exact_;
};

}  // namespace

void ProblemData::link() {
  shape.hidden = hidden;
  shape.weight = weight;
  shape.targets = targets;
}

ForwardArgs forward_shape(const HostProblem& problem, Dtype dtype) {
  ForwardArgs args;
  args.hidden = {nullptr, dtype, {problem.tokens, problem.hidden_size}};
  args.weight = {nullptr, dtype, {problem.vocab, problem.hidden_size}};
  args.loss = {nullptr, Dtype::f32, {1}};
  args.statistics = {nullptr, Dtype::f32, {problem.tokens, 2}};
  return args;
}

BackwardArgs backward_shape(const HostProblem& problem, Dtype dtype) {
  const ForwardArgs forward = forward_shape(problem, dtype);
  BackwardArgs args;
  args.hidden = forward.hidden;
  args.weight = forward.weight;
  args.statistics = forward.statistics;
  args.logits = {
      nullptr, dtype, {problem.tokens, problem.vocab}};  // naive's forward pass stores them
  args.dhidden = {nullptr, dtype, forward.hidden.extent};
  args.dweight = {nullptr, dtype, forward.weight.extent};
  return args;
}

DeviceProblem::DeviceProblem(const ProblemData& data, Backend backend)
    : targets(bench::integer_buffer("katt::linear_cross_entropy::targets", backend, data.targets)) {
  const ForwardArgs shape = forward_shape(data.shape, data.dtype);
  hidden = {"katt::linear_cross_entropy::hidden", backend, data.dtype, shape.hidden.extent};
  weight = {"katt::linear_cross_entropy::weight", backend, data.dtype, shape.weight.extent};
  hidden.upload(data.hidden);
  weight.upload(data.weight);
}

ForwardOutput::ForwardOutput(const HostProblem& problem, Dtype dtype, Backend backend,
                             bool with_logits)
    : loss("katt::linear_cross_entropy::loss", backend, Dtype::f32, {1}),
      statistics("katt::linear_cross_entropy::statistics", backend, Dtype::f32,
                 {problem.tokens, 2}) {
  if (!with_logits) return;
  logits = {"katt::linear_cross_entropy::logits", backend, dtype, {problem.tokens, problem.vocab}};
}

void ForwardOutput::poison() const {
  loss.poison();
  statistics.poison();
}

void BackwardOutput::poison() const {
  dhidden.poison();
  dweight.poison();
}

ForwardArgs link(const DeviceProblem& problem, const ForwardOutput& output) {
  ForwardArgs args;
  args.hidden = problem.hidden.ref();
  args.weight = problem.weight.ref();
  args.targets = bench::integers_of(problem.targets);
  args.loss = output.loss.ref();
  args.statistics = output.statistics.ref();
  args.logits = output.logits.ref();
  check(args);
  return args;
}

BackwardArgs link(const DeviceProblem& problem, const ForwardOutput& forward,
                  const BackwardOutput& output) {
  const ForwardOutput& read = output.saved ? *output.saved : forward;
  BackwardArgs args;
  args.hidden = problem.hidden.ref();
  args.weight = problem.weight.ref();
  args.targets = bench::integers_of(problem.targets);
  args.statistics = read.statistics.ref();
  args.logits = read.logits.ref();
  args.dhidden = output.dhidden.ref();
  args.dweight = output.dweight.ref();
  check(args);
  return args;
}

Reference::Reference(const ProblemData& data) : shape_(data.shape), dtype_(data.dtype) {
  const double row = static_cast<double>(shape_.hidden_size);
  tokens_ = testing::sample(shape_.tokens, 3e7 / (row * static_cast<double>(shape_.vocab)));
  columns_ = testing::sample(shape_.vocab, 3e7 / (row * static_cast<double>(shape_.tokens)));
  // Rows of dweight that are targets differ from the others.
  for (std::size_t t = 0; t < std::min<std::size_t>(4, shape_.targets.size()); ++t) {
    if (shape_.targets[t] != shape_.ignore_index) columns_.push_back(shape_.targets[t]);
  }
}

bench::Errors Reference::forward(float loss, std::span<const float> statistics) const {
  const Precision unfused{false, dtype_};
  double error = 0;
  double scale = 1;
  testing::Comparison lse;
  struct Token {
    double lse, error;
  };
  const auto tokens = testing::of_each(tokens_, [&](std::int64_t t) {
    Token token{reference_lse(shape_, t), 0};
    token.error = std::abs(reference_lse(shape_, t, unfused) - token.lse);
    const std::int64_t target = shape_.targets[static_cast<std::size_t>(t)];
    if (target != shape_.ignore_index) {
      token.error = std::max(token.error, std::abs(reference_logit(shape_, t, target, unfused) -
                                                   reference_logit(shape_, t, target)));
    }
    return token;
  });
  for (const Token& token : tokens) {
    error = std::max(error, token.error);
    scale = std::max(scale, std::abs(token.lse));
  }
  const double limit = 2 * error + 16 * 0x1p-23 * scale;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const auto at = static_cast<std::size_t>(2 * tokens_[i]);
    if (shape_.targets[static_cast<std::size_t>(tokens_[i])] == shape_.ignore_index) continue;
    lse.add("lse", {tokens_[i]}, static_cast<double>(statistics[at]) + statistics[at + 1],
            tokens[i].lse, limit);
  }
  // The mean over all tokens, from statistics of which the sample vouches for.
  double sum = 0;
  double count = 0;
  for (std::int64_t t = 0; t < shape_.tokens; ++t) {
    const std::int64_t target = shape_.targets[static_cast<std::size_t>(t)];
    if (target == shape_.ignore_index) continue;
    const auto at = static_cast<std::size_t>(2 * t);
    sum += static_cast<double>(statistics[at]) + statistics[at + 1] -
           reference_logit(shape_, t, target);
    count += 1;
  }
  testing::Comparison mean;
  mean.add("loss", {0}, loss, sum / count, 2 * limit);
  bench::Errors errors = mean.result();
  if (errors.status.is_ok()) errors.status = lse.result().status;
  return errors;
}

bench::Errors Reference::backward(std::span<const float> dhidden, std::span<const float> dweight,
                                  std::span<const float> statistics) const {
  const Precision unfused{false, dtype_};
  Rows hidden_rows("dhidden", dtype_);
  struct Row {
    std::vector<double> exact, unfused;
  };
  const auto of_tokens = testing::of_each(tokens_, [&](std::int64_t t) {
    return Row{reference_dhidden(shape_, t), reference_dhidden(shape_, t, unfused)};
  });
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    hidden_rows.add(tokens_[i], of_tokens[i].exact, of_tokens[i].unfused);
  }
  std::vector<double> lse;
  for (std::int64_t t = 0; t < shape_.tokens; ++t) {
    const auto at = static_cast<std::size_t>(2 * t);
    lse.push_back(static_cast<double>(statistics[at]) + statistics[at + 1]);
  }
  Rows weight_rows("dweight", dtype_);
  const auto of_columns = testing::of_each(columns_, [&](std::int64_t v) {
    return Row{reference_dweight(shape_, v, lse), reference_dweight(shape_, v, lse, unfused)};
  });
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    weight_rows.add(columns_[i], of_columns[i].exact, of_columns[i].unfused);
  }
  bench::Errors errors = hidden_rows.compare(dhidden);
  const bench::Errors weights = weight_rows.compare(dweight);
  errors.max_abs = std::max(errors.max_abs, weights.max_abs);
  errors.mean_abs = std::max(errors.mean_abs, weights.mean_abs);
  if (errors.status.is_ok()) errors.status = weights.status;
  return errors;
}

}  // namespace katt::linear_cross_entropy
