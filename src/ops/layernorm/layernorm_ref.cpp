#include "ops/layernorm/layernorm_ref.hpp"

#include <algorithm>
#include <cmath>

#include "testing/precision.hpp"
#include "testing/sample.hpp"

namespace katt::layernorm {

namespace {

using testing::Problem;

/// One row; backward with dx, and the products of dweight.
struct Row {
  std::vector<double> out, dx, dweight, dbias;
  double largest = 0;  ///< max |rstd · g|, of which dx may be a small difference
};

template <class Way>
Row row_of(const Problem& p, std::int64_t t, const Way& stored) {
  using Real = typename Way::Real;
  const std::int64_t hidden = p.extent("hidden");
  const auto x = p.row("x", hidden, t);
  const auto dout = p.row("dout", hidden, t);
  const auto n = static_cast<Real>(hidden);
  const auto weight = p.floats("weight");
  Real mean = 0;
  for (const float value : x) mean += static_cast<Real>(value);
  mean /= n;
  Real variance = 0;
  for (const float value : x) variance += (value - mean) * (value - mean);
  const Real rstd = 1 / std::sqrt(variance / n + static_cast<Real>(p.parameter("eps")));
  std::vector<Real> hat;
  for (const float value : x) hat.push_back(stored((value - mean) * rstd));
  Row row;
  if (!p.backward) {
    for (std::size_t j = 0; j < hat.size(); ++j) {
      row.out.push_back(stored(hat[j] * weight[j] + p.floats("bias")[j]));
    }
    return row;
  }
  std::vector<Real> g;
  Real mean_g = 0;
  Real mean_gx = 0;
  for (std::size_t j = 0; j < hat.size(); ++j) {
    g.push_back(stored(static_cast<Real>(dout[j]) * weight[j]));
    mean_g += g[j] / n;
    mean_gx += g[j] * hat[j] / n;
    row.dweight.push_back(stored(dout[j] * hat[j]));
    row.dbias.push_back(dout[j]);
  }
  for (std::size_t j = 0; j < hat.size(); ++j) {
    row.dx.push_back(stored(rstd * (g[j] - mean_g - hat[j] * mean_gx)));
    row.largest = std::max(row.largest, std::abs(static_cast<double>(rstd * g[j])));
  }
  return row;
}

/// Elements `columns` of Σ_t rows(t).*member.
template <class Way>
std::vector<double> sums(const Problem& p, std::span<const std::int64_t> columns, const Way& stored,
                         std::vector<double> Row::*member) {
  std::vector<typename Way::Real> sum(columns.size(), 0);
  for (std::int64_t t = 0; t < p.extent("tokens"); ++t) {
    const Row row = row_of(p, t, stored);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      sum[c] +=
          static_cast<typename Way::Real>((row.*member)[static_cast<std::size_t>(columns[c])]);
    }
  }
  std::vector<double> rounded;
  for (const auto value : sum) rounded.push_back(stored(value));
  return rounded;
}

}  // namespace

testing::Expected expected(const Problem& p) {
  const testing::Exactly exactly;
  const testing::Unfused unfused{p.dtype};
  const std::int64_t hidden = p.extent("hidden");
  testing::ExpectedPart rows{p.backward ? "dx" : "out"};
  for (const std::int64_t t :
       testing::sample(p.extent("tokens"), 2e6 / static_cast<double>(hidden))) {
    const Row exact = row_of(p, t, exactly);
    const Row rounded = row_of(p, t, unfused);
    rows.add(t * hidden, p.backward ? exact.dx : exact.out, p.backward ? rounded.dx : rounded.out);
    rows.slack = std::max(rows.slack, 4 * 0x1p-23 * exact.largest);
  }
  testing::Expected result{rows};
  if (!p.backward) return result;
  const auto columns = testing::sample(hidden, 64);
  for (const auto& [name, member] : {std::pair("dweight", &Row::dweight), {"dbias", &Row::dbias}}) {
    testing::ExpectedPart part{.output = name, .unreported = true};
    const auto exact = sums(p, columns, exactly, member);
    const auto rounded = sums(p, columns, unfused, member);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      part.values.push_back({columns[c], exact[c], rounded[c]});
    }
    result.push_back(part);
  }
  return result;
}

}  // namespace katt::layernorm
