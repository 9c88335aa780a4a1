#include "ops/layernorm/layernorm_ref.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "op/reference/precision.hpp"
#include "op/reference/sample.hpp"

namespace katt::layernorm {

namespace {

struct Results {
  std::vector<double> rows;  ///< of out or dx, those asked for
  std::vector<double> dweight, dbias;
  double largest = 0;  ///< max |rstd · g|, of which dx may be a small difference
};

/// A power of two by which a row is multiplied first, which costs no digits: 1, but for rows whose
/// squares f32 cannot hold.
float scale_of(std::span<const float> row) {
  float largest = 0;
  for (const float value : row) largest = std::max(largest, std::abs(value));
  return largest > 0x1p50F ? 0x1p-80F : 1.0F;
}

template <class Way>
Results compute(const testing::Problem& p, const std::vector<std::int64_t>& rows,
                const Way& stored) {
  using Real = typename Way::Real;
  const std::int64_t hidden = p.extent("hidden");
  const auto n = static_cast<Real>(hidden);
  const auto weight = p.floats("weight");
  const auto bias = p.floats("bias");
  Results made;
  const std::vector<Real> zeros(weight.size());
  auto hat = zeros, g = zeros, dweight = zeros, dbias = zeros;
  for (std::int64_t t = 0; t < p.extent("tokens"); ++t) {
    const bool asked = std::binary_search(rows.begin(), rows.end(), t);
    if (!asked && !p.backward) continue;  // the sums read every row
    const auto x = p.row("x", hidden, t);
    const auto dout = p.row("dout", hidden, t);
    const Real scale = scale_of(x);
    Real mean = 0;
    for (const float value : x) mean += scale * value / n;
    Real variance = 0;
    for (const float value : x) {
      variance += (scale * value - mean) * (scale * value - mean) / n;
    }
    const Real rstd =
        1 / std::sqrt(variance + static_cast<Real>(p.parameter("eps")) * scale * scale);
    Real mean_g = 0;
    Real mean_gx = 0;
    for (std::size_t j = 0; j < x.size(); ++j) {
      hat[j] = stored((scale * x[j] - mean) * rstd);
      if (!p.backward) {
        made.rows.push_back(stored(hat[j] * weight[j] + bias[j]));
        continue;
      }
      g[j] = stored(static_cast<Real>(dout[j]) * weight[j]);
      mean_g += g[j] / n;
      mean_gx += g[j] * hat[j] / n;
      dweight[j] += stored(dout[j] * hat[j]);
      dbias[j] += dout[j];
      made.largest = std::max(made.largest, std::abs(static_cast<double>(scale * rstd * g[j])));
    }
    for (std::size_t j = 0; asked && p.backward && j < x.size(); ++j) {
      made.rows.push_back(stored(scale * rstd * (g[j] - mean_g - hat[j] * mean_gx)));
    }
  }
  for (const Real sum : dweight) made.dweight.push_back(stored(sum));
  for (const Real sum : dbias) made.dbias.push_back(stored(sum));
  return made;
}

}  // namespace

testing::Expected expected(const testing::Problem& p) {
  const std::int64_t hidden = p.extent("hidden");
  const auto rows = testing::sample(p.extent("tokens"), 2e6 / static_cast<double>(hidden));
  const Results exact = compute(p, rows, testing::Exactly{});
  const Results unfused = compute(p, rows, testing::Unfused{p.dtype});
  testing::ExpectedPart result{.output = p.backward ? "dx" : "out",
                               .slack = 4 * 0x1p-23 * exact.largest};
  for (std::size_t i = 0; i < exact.rows.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    result.values.push_back(
        {rows[i / exact.dweight.size()] * hidden + at % hidden, exact.rows[i], unfused.rows[i]});
  }
  if (!p.backward) return {result};
  testing::ExpectedPart dweight{.output = "dweight", .unreported = true};
  dweight.add(0, exact.dweight, unfused.dweight);
  testing::ExpectedPart dbias{.output = "dbias", .unreported = true};
  dbias.add(0, exact.dbias, unfused.dbias);
  return {result, dweight, dbias};
}

}  // namespace katt::layernorm
