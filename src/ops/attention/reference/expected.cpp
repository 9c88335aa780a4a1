#include "ops/attention/reference/expected.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "op/reference/fill.hpp"
#include "op/reference/of_each.hpp"
#include "ops/attention/attention.hpp"

namespace katt::attention {

namespace {

/// Allowed relative error of P for a score, or a sum of terms, of this size in f32: one rounding of
/// it. With large scores and few competing keys the unfused values can be exact by chance, although
/// no f32 score is.
double score_rounding(double largest) { return 0x1p-24 * std::max(1.0, largest); }

/// Adds that rounding to what a part allows, for its own scale.
void add_score_rounding(testing::ExpectedPart& part, double largest_score) {
  double scale = 0;
  for (const testing::ExpectedValue& value : part.values) {
    if (std::isfinite(value.exact)) scale = std::max(scale, std::abs(value.exact));
  }
  part.slack += score_rounding(largest_score) * scale;
}

/// Every query of `batch` entries of `heads` heads in a small problem; in a large one the first and
/// last of the corners and a hashed choice, so many that the reference costs about 2·10^8
/// multiplications. `rows`: that one of them stands for.
std::vector<QueryIndex> sample_queries(const HostProblem& p, std::int64_t batch, std::int64_t heads,
                                       std::int64_t rows = 1) {
  const std::int64_t total = batch * heads * p.seq_q;
  const double cost = static_cast<double>(std::max<std::int64_t>(1, rows * p.seq_kv * p.head_dim));
  const auto wanted = static_cast<std::int64_t>(std::clamp(1e8 / cost, 16.0, 4096.0));
  const auto at = [&](std::int64_t flat) {
    return QueryIndex{flat / p.seq_q / heads, flat / p.seq_q % heads, flat % p.seq_q};
  };
  std::set<QueryIndex> chosen;
  if (total <= wanted) {
    for (std::int64_t i = 0; i < total; ++i) chosen.insert(at(i));
  } else {
    chosen.insert(at(0));
    chosen.insert(at(p.seq_q - 1));
    chosen.insert(at(total - p.seq_q));
    chosen.insert(at(total - 1));
    for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < wanted; ++i) {
      chosen.insert(
          at(static_cast<std::int64_t>(testing::hash(7, i) % static_cast<std::uint64_t>(total))));
    }
  }
  return {chosen.begin(), chosen.end()};
}

/// Every key/value head of a small problem, in (batch, kv_head) order; of a large one so many that
/// the gradients cost about 2·10^8 multiplications.
std::set<std::int64_t> sample_heads(const HostProblem& p) {
  const std::int64_t group = p.heads / p.kv_heads;
  const double cost = static_cast<double>(group) * static_cast<double>(p.seq_q) *
                      static_cast<double>(p.seq_kv) * static_cast<double>(p.head_dim);
  const std::int64_t total = p.batch * p.kv_heads;
  const auto wanted = static_cast<std::int64_t>(std::clamp(2e8 / std::max(1.0, cost), 1.0, 64.0));
  std::set<std::int64_t> chosen;
  for (std::uint64_t i = 0; static_cast<std::int64_t>(chosen.size()) < std::min(wanted, total);
       ++i) {
    chosen.insert(total <= wanted ? static_cast<std::int64_t>(i)
                                  : static_cast<std::int64_t>(testing::hash(8, i) %
                                                              static_cast<std::uint64_t>(total)));
  }
  return chosen;
}

/// The gradient of the bias.
testing::ExpectedPart expected_mask_gradient(const HostProblem& p, Dtype dtype, double factor) {
  testing::ExpectedPart dmask{.output = "dmask", .factor = factor};
  const std::int64_t summed = p.batch / p.bias_batch * (p.heads / p.bias_heads);
  const std::vector<QueryIndex> queries = sample_queries(p, p.bias_batch, p.bias_heads, summed);
  struct Row {
    MaskGradientRow exact, unfused;
  };
  const std::vector<Row> rows = testing::of_each(queries, [&](const QueryIndex& index) {
    return Row{reference_mask_row(p, index), unfused_mask_row(p, index, dtype)};
  });
  double largest_lse = 0, terms = 0;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const QueryIndex& index = queries[i];
    const auto& [exact, unfused] = rows[i];
    const std::int64_t row = (index.batch * p.bias_heads + index.head) * p.seq_q + index.query;
    dmask.add(row * p.seq_kv, exact.gradient, unfused.gradient);
    largest_lse = std::max(largest_lse, exact.largest_lse);
    terms = std::max(terms, exact.terms);
  }
  add_score_rounding(dmask, 3 * largest_lse);
  dmask.slack += 2 * 0x1p-23 * terms;
  return dmask;
}

}  // namespace

testing::Expected expected_rows(const HostProblem& p, Dtype dtype) {
  testing::ExpectedPart out{.output = "out"};
  testing::ExpectedPart lse{.output = "lse", .unreported = true};
  double largest_score = 0, largest_lse = 0;
  const std::vector<QueryIndex> queries = sample_queries(p, p.batch, p.heads);
  struct Row {
    ReferenceRow exact, unfused;
  };
  const std::vector<Row> rows = testing::of_each(queries, [&](const QueryIndex& index) {
    return Row{reference_row(p, index), unfused_row(p, index, dtype)};
  });
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const QueryIndex& index = queries[i];
    const auto& [exact, unfused] = rows[i];
    const std::int64_t row = (index.batch * p.heads + index.head) * p.seq_q + index.query;
    out.add(row * p.head_dim, exact.out, unfused.out);
    lse.values.push_back({row, exact.lse, unfused.lse});
    if (std::isfinite(exact.lse)) {
      largest_score = std::max(largest_score, exact.terms);
      largest_lse = std::max(largest_lse, std::abs(exact.lse));
    }
  }
  add_score_rounding(out, largest_score);
  // An unfused variant stores its scores in the dtype, and an lse is the rest after terms cancel.
  lse.slack = score_rounding(std::max(largest_score, largest_lse));
  return {std::move(out), std::move(lse)};
}

testing::Expected expected_gradients(const HostProblem& p, Dtype dtype) {
  const bool bent = std::ranges::any_of(score_parameters, [&](const ScoreParameter& parameter) {
    return p.score.*parameter.value != parameter.minimum;
  });
  const double factor = p.heads > p.kv_heads || bent ? 3 : 2;
  testing::ExpectedPart dq{.output = "dq", .factor = factor};
  testing::ExpectedPart dk{.output = "dk", .factor = factor};
  testing::ExpectedPart dv{.output = "dv", .factor = factor};
  double largest_lse = 0, dq_terms = 0, dk_terms = 0;
  for (const std::int64_t head : sample_heads(p)) {
    const std::int64_t b = head / p.kv_heads, h = head % p.kv_heads;
    const ReferenceGradients exact = reference_gradients(p, b, h);
    const ReferenceGradients unfused = unfused_gradients(p, b, h, dtype);
    const std::int64_t keys = head * p.seq_kv * p.head_dim;
    // The query heads of a group follow each other.
    dq.add(head * (p.heads / p.kv_heads) * p.seq_q * p.head_dim, exact.dq, unfused.dq);
    dk.add(keys, exact.dk, unfused.dk);
    dv.add(keys, exact.dv, unfused.dv);
    largest_lse = std::max(largest_lse, exact.largest_lse);
    dq_terms = std::max(dq_terms, exact.dq_terms);
    dk_terms = std::max(dk_terms, exact.dk_terms);
  }
  // P = exp(S − lse) has the rounding of the score, that of lse, which is stored in f32, and that of
  // lse in base 2. With one key the unfused values have none of them.
  for (testing::ExpectedPart* part : {&dq, &dk, &dv}) add_score_rounding(*part, 3 * largest_lse);
  dq.slack += 2 * 0x1p-23 * dq_terms;
  dk.slack += 2 * 0x1p-23 * dk_terms;
  testing::Expected expected{std::move(dq), std::move(dk), std::move(dv)};
  if (p.mask_gradient) expected.push_back(expected_mask_gradient(p, dtype, factor));
  return expected;
}

}  // namespace katt::attention
