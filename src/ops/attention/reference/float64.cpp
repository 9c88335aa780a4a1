#include "ops/attention/reference/float64.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <type_traits>

namespace katt::attention {

namespace {

std::int64_t length_of(const HostProblem& p, const QueryIndex& at) {
  return p.kv_len.empty() ? p.seq_kv : p.kv_len[static_cast<std::size_t>(at.batch)];
}

/// The position of the query among the keys.
std::int64_t position_of(const HostProblem& p, const QueryIndex& at) {
  return at.query + length_of(p, at) - p.seq_q;
}

/// Visibility straight from the definition, one pair at a time.
bool sees(const HostProblem& p, const QueryIndex& at, std::int64_t key) {
  if (key >= length_of(p, at)) return false;
  const std::int64_t position = position_of(p, at);
  if (p.causal && key > position) return false;
  if (!p.causal && p.window_right >= 0 && key > position + p.window_right) return false;
  if (p.window_left >= 0 && key < position - p.window_left) return false;
  if (!p.block_mask.empty()) {
    const std::int64_t columns = (p.seq_kv + p.block_size - 1) / p.block_size;
    const std::int64_t block = at.query / p.block_size * columns + key / p.block_size;
    if (p.block_mask[static_cast<std::size_t>(block)] == 0) return false;
  }
  return true;
}

/// The score rule on one score; `slope` becomes d score / d (score before it). `rounded` is applied
/// to each value that an unfused implementation stores.
template <class Real, class Round>
Real scored(const HostProblem& p, const QueryIndex& at, std::int64_t key, Real s, Real& slope,
            const Round& rounded) {
  slope = 1;
  if (p.score.softcap > 0) {
    const Real t = std::tanh(s / static_cast<Real>(p.score.softcap));
    slope = 1 - t * t;
    s = rounded(static_cast<Real>(p.score.softcap) * t);
  }
  if (p.score.alibi_slopes != nullptr) {
    const auto distance = static_cast<Real>(std::abs(position_of(p, at) - key));
    s = rounded(s - static_cast<Real>(p.score.alibi_slopes[at.head]) * distance);
  }
  if (p.rule) {
    double own = 1;
    s = rounded(static_cast<Real>(p.rule(static_cast<double>(s), at,
                                         static_cast<double>(position_of(p, at)),
                                         static_cast<double>(key), own)));
    slope *= static_cast<Real>(own);
  }
  return s;
}

float bias_at(const HostProblem& p, const QueryIndex& at, std::int64_t key) {
  const std::int64_t b = p.bias_batch == 1 ? 0 : at.batch;
  const std::int64_t h = p.bias_heads == 1 ? 0 : at.head;
  return p.bias[static_cast<std::size_t>(((b * p.bias_heads + h) * p.seq_q + at.query) * p.seq_kv +
                                         key)];
}

/// Σ a·b over head_dim elements: in double in eight partial sums, in float one product after the
/// other, as kernels and libraries do it, with the error that this has.
template <class Real, class A, class B>
Real dot_product(const A* a, const B* b, std::size_t count) {
  if constexpr (std::is_same_v<Real, float>) {
    float sum = 0;
    for (std::size_t c = 0; c < count; ++c) sum = std::fma(a[c], b[c], sum);
    return sum;
  }
  Real partial[8] = {};
  for (std::size_t c = 0; c < count; c += 8) {  // head_dim is a multiple of 8
    for (std::size_t l = 0; l < 8; ++l) {
      partial[l] += static_cast<Real>(a[c + l]) * static_cast<Real>(b[c + l]);
    }
  }
  Real sum = 0;
  for (const Real part : partial) sum += part;
  return sum;
}

/// Σ |a·b|
double dot_terms(const float* a, const float* b, std::size_t count) {
  double partial[8] = {};
  for (std::size_t c = 0; c < count; c += 8) {
    for (std::size_t l = 0; l < 8; ++l) partial[l] += std::abs(double{a[c + l]} * double{b[c + l]});
  }
  return std::accumulate(std::begin(partial), std::end(partial), 0.0);
}

/// A score with its bias. Scores are f32: where the bias is 2^25 times the terms of the score and
/// more, the sum is the bias, and without an error of its own.
template <class Real>
struct Biased {
  Real score;
  bool is_bias_alone;
};
template <class Real>
Biased<Real> biased(const HostProblem& p, const QueryIndex& at, std::int64_t key, Real s,
                    const float* q, const float* k) {
  const float bias = bias_at(p, at, key);
  if (std::isfinite(bias) && std::abs(bias) > 0x1p20F) {
    const double distance = p.score.alibi_slopes == nullptr
                                ? 0.0
                                : p.score.alibi_slopes[at.head] *
                                      std::abs(static_cast<double>(position_of(p, at) - key));
    const double of_dot = std::abs(p.scale) * dot_terms(q, k, static_cast<std::size_t>(p.head_dim));
    const double terms = std::max(of_dot + distance, std::abs(static_cast<double>(s)));
    if (std::abs(double{bias}) > 0x1p25 * terms) return {static_cast<Real>(bias), true};
  }
  return {s + static_cast<Real>(bias), false};
}

/// One row in arithmetic type Real; `rounded` is applied to every stored score and probability, and
/// the terms of a score are told in double alone.
template <class Real, class Round>
ReferenceRow row(const HostProblem& p, const QueryIndex& at, const Round& rounded) {
  const auto d = static_cast<std::size_t>(p.head_dim);
  const auto n = static_cast<std::size_t>(p.seq_kv);
  const std::int64_t kv_head = at.head / (p.heads / p.kv_heads);
  const float* q =
      p.q.data() +
      static_cast<std::size_t>((at.batch * p.heads + at.head) * p.seq_q + at.query) * d;
  const std::size_t kv_offset = static_cast<std::size_t>(at.batch * p.kv_heads + kv_head) * n * d;
  const float* k = p.k.data() + kv_offset;
  const float* v = p.v.data() + kv_offset;

  constexpr bool tells_terms = std::is_same_v<Real, double>;
  std::vector<Real> score(n, -std::numeric_limits<Real>::infinity());
  std::vector<double> terms(tells_terms ? n : 0);
  Real largest = -std::numeric_limits<Real>::infinity();
  for (std::size_t j = 0; j < n; ++j) {
    const auto key = static_cast<std::int64_t>(j);
    if (!sees(p, at, key)) continue;
    const Real dot = dot_product<Real>(q, k + j * d, d);
    Real s = rounded(dot * static_cast<Real>(p.scale));
    Real slope;
    s = scored(p, at, key, s, slope, rounded);
    if constexpr (tells_terms) {
      const double of_dot = std::abs(slope * p.scale) * dot_terms(q, k + j * d, d);
      terms[j] = std::max(of_dot, std::abs(s));
    }
    if (!p.bias.empty()) {
      const auto [sum, is_bias_alone] = biased(p, at, key, s, q, k + j * d);
      if constexpr (tells_terms) {
        const float bias = bias_at(p, at, key);
        terms[j] = is_bias_alone         ? 0.0
                   : std::isfinite(bias) ? terms[j] + std::abs(double{bias})
                                         : terms[j];
      }
      s = rounded(sum);
    }
    score[j] = s;
    largest = std::max(largest, s);
  }

  ReferenceRow result{.out = std::vector<double>(d, 0.0),
                      .lse = -std::numeric_limits<double>::infinity()};
  if (largest == -std::numeric_limits<Real>::infinity()) return result;
  Real sum = 0;
  for (Real& s : score) {
    s = std::exp(s - largest);
    sum += s;
  }
  std::vector<Real> out(d, Real{0});
  for (std::size_t j = 0; j < n; ++j) {
    const Real probability = rounded(score[j] / sum);
    if (probability == Real{0}) continue;
    for (std::size_t c = 0; c < d; ++c) out[c] += probability * static_cast<Real>(v[j * d + c]);
  }
  for (std::size_t c = 0; c < d; ++c) result.out[c] = static_cast<double>(out[c]);
  result.lse = static_cast<double>(largest + std::log(sum));
  if constexpr (tells_terms) {
    for (std::size_t j = 0; j < n; ++j) result.terms += score[j] / sum * terms[j];
  }
  return result;
}

/// The contribution of one query to the gradients: its rows of P and of scale · dS, and the bounds
/// of their error. A query that sees no key leaves P at 0.
template <class Real>
struct GradientRow {
  std::vector<Real> p, ds;
  std::vector<Real> dmask;  ///< dS before the slope of the rule and the scale
  double lse = 0;    ///< |lse|, of which P has a rounding; 0 where it is that of a bias alone
  Real terms = 0;    ///< Σ |out · dout|
  Real largest = 0;  ///< |q|
};

template <class Real>
Real largest_of(const float* values, std::size_t count) {
  Real largest = 0;
  for (std::size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(Real{values[i]}));
  return largest;
}

template <class Real, class Round>
void gradient_row(const HostProblem& p, const QueryIndex& at, const float* k, const float* v,
                  const Round& rounded, GradientRow<Real>& result, Real* dq) {
  const auto d = static_cast<std::size_t>(p.head_dim);
  const auto n = static_cast<std::size_t>(p.seq_kv);
  const auto row = static_cast<std::size_t>((at.batch * p.heads + at.head) * p.seq_q + at.query);
  const float* q = p.q.data() + row * d;
  const float* dout = p.dout.data() + row * d;
  constexpr Real none = -std::numeric_limits<Real>::infinity();
  std::vector<Real>& score = result.p;
  std::vector<Real> slope(n, 1), out(d);
  score.assign(n, none);
  result.ds.assign(n, 0);
  result.dmask.assign(n, 0);
  Real largest = none;
  bool is_bias_alone = false;  // the largest
  for (std::size_t j = 0; j < n; ++j) {
    const auto key = static_cast<std::int64_t>(j);
    if (!sees(p, at, key)) continue;
    Real s = rounded(dot_product<Real>(q, k + j * d, d) * static_cast<Real>(p.scale));
    s = scored(p, at, key, s, slope[j], rounded);
    bool alone = false;
    if (!p.bias.empty()) {
      const Biased<Real> sum = biased(p, at, key, s, q, k + j * d);
      s = rounded(sum.score);
      alone = sum.is_bias_alone;
    }
    score[j] = s;
    if (s > largest) is_bias_alone = alone;
    largest = std::max(largest, s);
  }
  result.lse = 0;
  result.terms = result.largest = 0;
  if (largest == none) {  // sees no key: no gradient
    score.assign(n, 0);
    return;
  }
  Real sum = 0;
  for (const Real s : score) sum += std::exp(s - largest);
  const Real lse = largest + std::log(sum);
  for (std::size_t j = 0; j < n; ++j) {
    // P from here on: by lse, but where a float has no digits left for log(sum).
    score[j] = rounded(std::abs(lse) < 0x1p12 ? std::exp(score[j] - lse)
                                              : std::exp(score[j] - largest) / sum);
    for (std::size_t c = 0; c < d; ++c) out[c] += score[j] * static_cast<Real>(v[j * d + c]);
  }
  Real delta = 0;
  for (std::size_t c = 0; c < d; ++c) {
    const Real term = rounded(out[c]) * static_cast<Real>(dout[c]);
    delta += term;
    result.terms += std::abs(term);
  }
  for (std::size_t j = 0; j < n; ++j) {
    if (score[j] == Real{0}) continue;
    const Real dp = rounded(dot_product<Real>(dout, v + j * d, d));
    result.dmask[j] = rounded(score[j] * (dp - delta));
    result.ds[j] = rounded(score[j] * (dp - delta) * slope[j]) * static_cast<Real>(p.scale);
    for (std::size_t c = 0; c < d; ++c) dq[c] += result.ds[j] * static_cast<Real>(k[j * d + c]);
  }
  result.lse = is_bias_alone ? 0.0 : std::abs(static_cast<double>(lse));
  result.largest = largest_of<Real>(q, d);
}

/// Gradients of one K/V head in arithmetic type Real, on all OpenMP threads: the rows of some
/// queries at a time, then their terms for each key, in the queries' order for any number of
/// threads.
template <class Real, class Round>
ReferenceGradients gradients(const HostProblem& p, std::int64_t batch, std::int64_t kv_head,
                             const Round& rounded) {
  constexpr std::int64_t queries_at_once = 64;
  const auto d = static_cast<std::size_t>(p.head_dim);
  const auto n = static_cast<std::size_t>(p.seq_kv);
  const std::int64_t group = p.heads / p.kv_heads;
  const std::size_t kv_offset = static_cast<std::size_t>(batch * p.kv_heads + kv_head) * n * d;
  const float* k = p.k.data() + kv_offset;
  const float* v = p.v.data() + kv_offset;
  const std::int64_t queries = group * p.seq_q;  // those of a group follow each other
  const auto first_row = static_cast<std::size_t>((batch * p.heads + kv_head * group) * p.seq_q);
  std::vector<Real> dk(n * d), dv(n * d), dq(static_cast<std::size_t>(queries) * d), key_terms(n);
  std::vector<GradientRow<Real>> rows(static_cast<std::size_t>(std::min(queries, queries_at_once)));
  Real largest_query = 0, largest_row_terms = 0;
  double largest_lse = 0;

  for (std::int64_t begin = 0; begin < queries; begin += queries_at_once) {
    const std::int64_t count = std::min(queries_at_once, queries - begin);
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t query = begin + r;
      gradient_row(p, {batch, kv_head * group + query / p.seq_q, query % p.seq_q}, k, v, rounded,
                   rows[static_cast<std::size_t>(r)],
                   dq.data() + static_cast<std::size_t>(query) * d);
    }
#pragma omp parallel for
    for (std::size_t j = 0; j < n; ++j) {
      for (std::int64_t r = 0; r < count; ++r) {
        const GradientRow<Real>& row = rows[static_cast<std::size_t>(r)];
        if (row.p[j] == Real{0}) continue;
        const std::size_t at = (first_row + static_cast<std::size_t>(begin + r)) * d;
        key_terms[j] += row.p[j] * row.terms;
        for (std::size_t c = 0; c < d; ++c) {
          dv[j * d + c] += row.p[j] * static_cast<Real>(p.dout[at + c]);
          dk[j * d + c] += row.ds[j] * static_cast<Real>(p.q[at + c]);
        }
      }
    }
    for (std::int64_t r = 0; r < count; ++r) {
      const GradientRow<Real>& row = rows[static_cast<std::size_t>(r)];
      largest_lse = std::max(largest_lse, row.lse);
      largest_row_terms = std::max(largest_row_terms, row.terms);
      largest_query = std::max(largest_query, row.largest);
    }
  }
  const auto widened = [&](const std::vector<Real>& values) {
    std::vector<double> wide(values.size());
    std::transform(values.begin(), values.end(), wide.begin(),
                   [&](Real value) { return static_cast<double>(rounded(value)); });
    return wide;
  };
  const double scale = std::abs(p.scale);
  return {widened(dq),
          widened(dk),
          widened(dv),
          largest_lse,
          scale * static_cast<double>(largest_row_terms * largest_of<Real>(k, n * d)),
          scale * static_cast<double>(n == 0 ? 0 : std::ranges::max(key_terms) * largest_query)};
}

/// A row of the gradient of the bias in arithmetic type Real: the terms in order of entries and heads.
template <class Real, class Round>
MaskGradientRow mask_row(const HostProblem& p, const QueryIndex& index, const Round& rounded) {
  const auto d = static_cast<std::size_t>(p.head_dim);
  const auto n = static_cast<std::size_t>(p.seq_kv);
  std::vector<Real> sum(n), terms(n), dq(d);
  MaskGradientRow result;
  GradientRow<Real> row;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    if (p.bias_batch != 1 && b != index.batch) continue;
    for (std::int64_t h = 0; h < p.heads; ++h) {
      if (p.bias_heads != 1 && h != index.head) continue;
      const std::int64_t kv_head = b * p.kv_heads + h / (p.heads / p.kv_heads);
      const std::size_t offset = static_cast<std::size_t>(kv_head) * n * d;
      gradient_row(p, {b, h, index.query}, p.k.data() + offset, p.v.data() + offset, rounded, row,
                   dq.data());
      for (std::size_t j = 0; j < n; ++j) {
        sum[j] += row.dmask[j];
        terms[j] += row.p[j] * row.terms;
      }
      result.largest_lse = std::max(result.largest_lse, row.lse);
    }
  }
  for (const Real value : sum) result.gradient.push_back(static_cast<double>(rounded(value)));
  result.terms = n == 0 ? 0 : static_cast<double>(std::ranges::max(terms));
  return result;
}

}  // namespace

ReferenceRow reference_row(const HostProblem& problem, const QueryIndex& index) {
  return row<double>(problem, index, [](double value) { return value; });
}

ReferenceRow unfused_row(const HostProblem& problem, const QueryIndex& index, Dtype dtype) {
  ReferenceRow result =
      row<float>(problem, index, [dtype](float value) { return round_to(dtype, value); });
  for (double& value : result.out) {
    value = static_cast<double>(round_to(dtype, static_cast<float>(value)));
  }
  return result;
}

ReferenceGradients reference_gradients(const HostProblem& problem, std::int64_t batch,
                                       std::int64_t kv_head) {
  return gradients<double>(problem, batch, kv_head, [](double value) { return value; });
}

ReferenceGradients unfused_gradients(const HostProblem& problem, std::int64_t batch,
                                     std::int64_t kv_head, Dtype dtype) {
  return gradients<float>(problem, batch, kv_head,
                          [dtype](float value) { return round_to(dtype, value); });
}

MaskGradientRow reference_mask_row(const HostProblem& problem, const QueryIndex& index) {
  return mask_row<double>(problem, index, [](double value) { return value; });
}

MaskGradientRow unfused_mask_row(const HostProblem& problem, const QueryIndex& index, Dtype dtype) {
  return mask_row<float>(problem, index, [dtype](float value) { return round_to(dtype, value); });
}

}  // namespace katt::attention
