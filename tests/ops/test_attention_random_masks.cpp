#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"

// Random masks of any size, up to the lowest finite number, scores of 1e10, lengths with NaN behind
// them, in every host variant, against float64. KATT_RANDOM_MASKS is the number of problems (60).
namespace katt::attention {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr double unsure = 0.25;  ///< noise of a score from which float64 does not tell the softmax

using Random = std::mt19937_64;

template <class T>
T one_of(Random& random, const std::vector<T>& choices) {
  return choices[random() % choices.size()];
}
bool chance(Random& random, int percent) { return static_cast<int>(random() % 100) < percent; }
std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

/// Large finite values that people write for "hidden", and any other size.
float large_value(Random& random, Dtype dtype) {
  const float lowest = dtype == Dtype::f16    ? -65504.0F
                       : dtype == Dtype::bf16 ? -0x1.FEp127F
                                              : std::numeric_limits<float>::lowest();
  const float any =
      std::ldexp(chance(random, 50) ? 1.5F : -1.25F,
                 static_cast<int>(between(random, 0, dtype == Dtype::f16 ? 15 : 126)));
  const auto value = one_of<float>(random, {-1e4F, -1e9F, -1e10F, -1e30F, lowest, lowest, any});
  return std::max(round_to(dtype, std::max(value, lowest)), lowest);
}

/// A bias of rows that are one large value, parts of rows that are, and ordinary numbers.
void add_bias(ProblemData& data, Random& random) {
  HostProblem& p = data.shape;
  p.bias_batch = chance(random, 50) ? p.batch : 1;
  p.bias_heads = chance(random, 50) ? p.heads : 1;
  data.bias.resize(static_cast<std::size_t>(p.bias_batch * p.bias_heads * p.seq_q * p.seq_kv));
  testing::fill(data.bias, random(), data.dtype);
  const auto row_size = static_cast<std::size_t>(p.seq_kv);
  for (std::size_t row = 0; row < data.bias.size(); row += row_size) {
    const auto begin = data.bias.begin() + static_cast<std::ptrdiff_t>(row);
    const float value = large_value(random, data.dtype);
    switch (random() % 5) {
      case 0: std::fill_n(begin, p.seq_kv, value); break;
      case 1: std::fill_n(begin + p.seq_kv / 2, p.seq_kv - p.seq_kv / 2, value); break;
      case 2:
        std::generate_n(begin, p.seq_kv, [&] { return large_value(random, data.dtype); });
        break;
      case 3:
        std::generate_n(begin, p.seq_kv, [&] { return chance(random, 50) ? value : -infinity; });
        break;
      default: break;
    }
  }
}

std::unique_ptr<ProblemData> random_problem(Random& random) {
  const std::int64_t kv_heads = between(random, 1, 2);
  const Dtype dtype = one_of<Dtype>(random, {Dtype::f32, Dtype::f16, Dtype::bf16});
  const Shape shape{between(random, 1, 2),
                    kv_heads * between(random, 1, 3),
                    kv_heads,
                    chance(random, 40) ? between(random, 1, 4) : between(random, 1, 70),
                    between(random, 1, chance(random, 10) ? 600 : 130),
                    8 * between(random, 1, 12)};
  auto data = make_problem(shape, dtype, random());
  HostProblem& p = data->shape;
  p.causal = chance(random, 30);
  if (chance(random, 20)) p.window_left = between(random, 0, 40);
  if (chance(random, 15)) p.score.softcap = 4.0F;
  if (chance(random, 15)) data->alibi_slopes = alibi_slopes(p.heads);
  if (chance(random, 75)) {
    add_bias(*data, random);
  } else if (dtype != Dtype::f16 && p.score.softcap == 0) {  // scores of ±1e10
    for (float& value : data->q) value = round_to(dtype, value * 0x1p17F);
    for (float& value : data->k) value = round_to(dtype, value * 0x1p17F);
  }
  if (chance(random, 40)) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      data->kv_len.push_back(between(random, 0, p.seq_kv));
    }
  }
  add_dout(*data, random());
  return data;
}

/// Checks of one query row: P in float64 of scores as f32 has them, and how wrong P may be
/// relative to itself.
struct Row {
  std::vector<double> p, slope;
  double lse = -infinity;
  double noise = 0;      ///< of the scores that count, as far as P has it
  double lse_noise = 0;  ///< of all that count
  double size = 0;       ///< the largest of those
};

/// A bias so large that a score of f32 is the bias alone replaces it here, too: its rounding is no
/// noise. `stored` is the relative rounding of scores that a variant stores.
Row row_of(const ProblemData& data, std::int64_t b, std::int64_t h, std::int64_t i, double stored) {
  const HostProblem& p = data.shape;
  const std::int64_t length =
      data.kv_len.empty() ? p.seq_kv : data.kv_len[static_cast<std::size_t>(b)];
  const std::int64_t position = i + length - p.seq_q;
  const auto n = static_cast<std::size_t>(p.seq_kv);
  const auto d = static_cast<std::size_t>(p.head_dim);
  const float* q = data.q.data() + static_cast<std::size_t>((b * p.heads + h) * p.seq_q + i) * d;
  const float* k =
      data.k.data() + static_cast<std::size_t>(b * p.kv_heads + h / (p.heads / p.kv_heads)) * n * d;
  Row row{std::vector<double>(n, 0.0), std::vector<double>(n, 1.0)};
  std::vector<double> score(n, -infinity), noise(n, 0.0);
  double most = -infinity;
  for (std::size_t j = 0; j < n; ++j) {
    const auto key = static_cast<std::int64_t>(j);
    if (key >= length || (p.causal && key > position) ||
        (p.window_left >= 0 && key < position - p.window_left)) {
      continue;
    }
    double s = 0, terms = 0;
    for (std::size_t c = 0; c < d; ++c) {
      s += double{q[c]} * double{k[j * d + c]};
      terms += std::abs(double{q[c]} * double{k[j * d + c]});
    }
    s *= p.scale;
    terms *= p.scale;
    if (p.score.softcap > 0) {
      const double t = std::tanh(s / p.score.softcap);
      row.slope[j] = 1 - t * t;
      s = p.score.softcap * t;
    }
    if (!data.alibi_slopes.empty()) {
      const double distance = data.alibi_slopes[static_cast<std::size_t>(h)] *
                              static_cast<double>(std::abs(position - key));
      s -= distance;
      terms += distance;
    }
    noise[j] = 0x1p-21 * terms + stored * std::abs(s);
    if (!data.bias.empty()) {
      const std::int64_t of_batch = p.bias_batch == 1 ? 0 : b, of_head = p.bias_heads == 1 ? 0 : h;
      const double bias = data.bias[static_cast<std::size_t>(
          ((of_batch * p.bias_heads + of_head) * p.seq_q + i) * p.seq_kv + key)];
      if (bias == -infinity) continue;
      if (std::abs(bias) > 0x1p25 * terms) {
        s = bias;
        noise[j] = 0;
      } else {
        s += bias;
        noise[j] += (0x1p-23 + stored) * std::abs(bias);
      }
    }
    score[j] = s;
    most = std::max(most, s - noise[j]);
  }
  if (most == -infinity) return row;
  double sum = 0, largest = -infinity;
  for (const double s : score) largest = std::max(largest, s);
  for (std::size_t j = 0; j < n; ++j) {
    row.p[j] = std::exp(score[j] - largest);
    sum += row.p[j];
    if (score[j] + noise[j] < most - 120) continue;  // no rounding brings it back
    row.noise = std::max(row.noise, noise[j]);
    row.size = std::max(row.size, std::abs(score[j]));
  }
  for (double& value : row.p) value /= sum;
  row.lse_noise = row.noise;
  // One key that is ahead of all others by more than any noise has P = 1 whatever its noise.
  if (std::ranges::count_if(score, [&](double s) { return s + row.noise >= most - 120; }) == 1) {
    row.noise = 0;
  }
  row.lse = largest + std::log(sum);
  return row;
}

/// Sums of an output, and how far they may be off.
struct Bounded {
  std::vector<double> value, error;
  explicit Bounded(std::size_t count) : value(count, 0.0), error(count, 0.0) {}
};

struct Expectation {
  Bounded out, dq, dk, dv;
  std::vector<double> lse, lse_error;
  std::vector<bool> tells;  ///< by row: whether float64 tells the softmax
};

/// Zeroes dout of the rows that float64 does not tell of: their gradients are 0 whatever P is.
Expectation expectation_of(ProblemData& data, double stored) {
  const HostProblem& p = data.shape;
  const auto d = static_cast<std::size_t>(p.head_dim);
  const auto n = static_cast<std::size_t>(p.seq_kv);
  Expectation e{Bounded(data.q.size()),
                Bounded(data.q.size()),
                Bounded(data.k.size()),
                Bounded(data.k.size()),
                {},
                {},
                {}};
  const double eps = data.dtype == Dtype::f32   ? 0x1p-22
                     : data.dtype == Dtype::f16 ? 0x1p-10
                                                : 0x1p-7;
  for (std::size_t row = 0; row < data.q.size() / d; ++row) {
    const auto i = static_cast<std::int64_t>(row) % p.seq_q;
    const auto h = static_cast<std::int64_t>(row) / p.seq_q % p.heads;
    const auto b = static_cast<std::int64_t>(row) / p.seq_q / p.heads;
    const Row of = row_of(data, b, h, i, stored);
    const std::size_t kv =
        static_cast<std::size_t>(b * p.kv_heads + h / (p.heads / p.kv_heads)) * n * d;
    e.lse.push_back(of.lse);
    e.lse_error.push_back(of.lse_noise + (0x1p-21 + stored) * of.size + 1e-5);
    e.tells.push_back(of.noise < unsure);
    float* dout = data.dout.data() + row * d;
    const float* q = data.q.data() + row * d;
    if (of.noise >= unsure) std::fill_n(dout, d, 0.0F);
    // exp(s − lse) of a backward pass has the rounding of lse as well, below where it is steep.
    const double wrong = 4 * of.noise + 4 * eps + 0x1p-22 * std::min(of.size, 0x1p13);
    double delta = 0, delta_terms = 0;
    for (std::size_t j = 0; j < n; ++j) {
      if (of.p[j] == 0) continue;
      for (std::size_t c = 0; c < d; ++c) {
        const double term = of.p[j] * data.v[kv + j * d + c];
        e.out.value[row * d + c] += term;
        e.out.error[row * d + c] += std::abs(term) * wrong;
        delta += term * dout[c];
        delta_terms += std::abs(term * dout[c]);
      }
    }
    for (std::size_t j = 0; j < n; ++j) {
      double dp = 0, dp_terms = 0;
      if (of.p[j] != 0) {
        for (std::size_t c = 0; c < d; ++c) {
          dp += double{dout[c]} * data.v[kv + j * d + c];
          dp_terms += std::abs(double{dout[c]} * data.v[kv + j * d + c]);
        }
      }
      const double ds = of.p[j] * (dp - delta) * of.slope[j] * p.scale;
      const double ds_error = (of.p[j] + 1e-12) * (dp_terms + delta_terms) * p.scale * wrong;
      for (std::size_t c = 0; c < d; ++c) {
        const std::size_t at = kv + j * d + c;
        if (of.p[j] != 0) {
          e.dq.value[row * d + c] += ds * data.k[at];
          e.dq.error[row * d + c] += ds_error * std::abs(data.k[at]);
        }
        e.dk.value[at] += ds * q[c];
        e.dk.error[at] += ds_error * std::abs(q[c]);
        e.dv.value[at] += of.p[j] * dout[c];
        e.dv.error[at] += (of.p[j] + 1e-12) * std::abs(dout[c]) * wrong;
      }
    }
  }
  return e;
}

Outputs run(const ProblemData& data, const Config& forward, const Config& backward) {
  if (backward.variant.empty()) return run_forward(Host(), data, forward);
  return run_backward(Host(), data, backward, HeadLayout::bhsd, forward);
}

std::string describe(const ProblemData& data) {
  const HostProblem& p = data.shape;
  return describe(Shape{p.batch, p.heads, p.kv_heads, p.seq_q, p.seq_kv, p.head_dim}) + " " +
         std::string(name_of(data.dtype)) + (p.causal ? " causal" : "") +
         (data.bias.empty() ? "" : " bias") + (data.kv_len.empty() ? "" : " kv_len") +
         (data.alibi_slopes.empty() ? "" : " alibi") + (p.score.softcap > 0 ? " softcap" : "") +
         (p.window_left >= 0 ? " window" : "");
}

::testing::AssertionResult is_close(const std::string& name, const std::vector<float>& got,
                                    const Bounded& expected, const std::vector<bool>& tells,
                                    std::size_t row_size, double rounding) {
  double largest = 0;
  for (const double value : expected.value) largest = std::max(largest, std::abs(value));
  for (std::size_t n = 0; n < got.size(); ++n) {
    if (!std::isfinite(got[n])) {
      return ::testing::AssertionFailure() << name << "[" << n << "] is " << got[n];
    }
    if (!tells.empty() && !tells[n / row_size]) continue;
    const double error = std::abs(got[n] - expected.value[n]);
    const double limit = 4 * expected.error[n] + rounding * std::abs(expected.value[n]) +
                         1e-6 * largest + 0x1p-24;  // a step of the smallest numbers of f16
    if (error > limit) {
      return ::testing::AssertionFailure() << name << "[" << n << "] is " << got[n] << ", expected "
                                           << expected.value[n] << " within " << limit;
    }
  }
  return ::testing::AssertionSuccess();
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, {}, std::bit_cast<std::uint32_t, float>,
                            std::bit_cast<std::uint32_t, float>);
}

/// Rows of K and V behind the lengths.
void fill_behind(ProblemData& data, const std::vector<float>& values) {
  const HostProblem& p = data.shape;
  const auto d = static_cast<std::size_t>(p.head_dim);
  for (std::vector<float>* tensor : {&data.k, &data.v}) {
    for (std::size_t row = 0; row < tensor->size() / d; ++row) {
      const auto j = static_cast<std::int64_t>(row) % p.seq_kv;
      const auto b = static_cast<std::int64_t>(row) / p.seq_kv / p.kv_heads;
      if (j < data.kv_len[static_cast<std::size_t>(b)]) continue;
      for (std::size_t c = 0; c < d; ++c)
        (*tensor)[row * d + c] = values[(row + c) % values.size()];
    }
  }
  data.link();
}

TEST(AttentionRandomMasks, EveryHostVariantIsRightAndReadsNothingBehindLengths) {
  const char* wanted = std::getenv("KATT_RANDOM_MASKS");
  const int problems = wanted == nullptr ? 60 : std::atoi(wanted);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::map<std::string, int> tried;
  for (int seed = 0; seed < problems && !HasFailure(); ++seed) {
    Random random(static_cast<std::uint64_t>(seed));
    const auto data = random_problem(random);
    if (!data->kv_len.empty()) fill_behind(*data, {0.0F});
    const double eps = data->dtype == Dtype::f32   ? 0x1p-23
                       : data->dtype == Dtype::f16 ? 0x1p-10
                                                   : 0x1p-7;
    const double stored = data->dtype == Dtype::f32 ? 0 : 2 * eps;
    // Elements that naive's stored scores do not show either have no gradient; the others are
    // compared by their own noise.
    (void)expectation_of(*data, stored);
    const Expectation by_naive = expectation_of(*data, stored), by_fused = expectation_of(*data, 0);
    const auto passes = variants_of(backward_variants<Host>(), backward_shape_args(*data));
    for (const Config& forward : variants_of(forward_variants<Host>(), shape_args(*data))) {
      const std::string& name = forward.variant;
      const bool trains = std::ranges::find(passes, name, &Config::variant) != passes.end();
      const Config backward{trains ? name : "", {}};
      const Outputs made = run(*data, forward, backward);
      const Expectation& e = name == "naive" ? by_naive : by_fused;
      const auto d = static_cast<std::size_t>(data->shape.head_dim);
      const std::string what = name + ", problem " + std::to_string(seed) + ", " + describe(*data);
      EXPECT_TRUE(is_close("out", made.out, e.out, e.tells, d, 2 * eps)) << what;
      for (std::size_t r = 0; r < e.lse.size(); ++r) {
        if (made.lse[r] == e.lse[r]) continue;
        EXPECT_LE(std::abs(made.lse[r] - e.lse[r]), 4 * e.lse_error[r])
            << what << ", lse[" << r << "] is " << made.lse[r] << ", expected " << e.lse[r];
      }
      if (trains) {
        EXPECT_TRUE(is_close("dq", made.dq, e.dq, {}, d, 2 * eps)) << what;
        EXPECT_TRUE(is_close("dk", made.dk, e.dk, {}, d, 2 * eps)) << what;
        EXPECT_TRUE(is_close("dv", made.dv, e.dv, {}, d, 2 * eps)) << what;
      }
      ++tried[name];
      if (data->kv_len.empty()) continue;
      fill_behind(*data, {nan, infinity, -infinity});
      const Outputs again = run(*data, forward, backward);
      EXPECT_TRUE(same_bits(made.out, again.out) && same_bits(made.lse, again.lse) &&
                  same_bits(made.dq, again.dq) && same_bits(made.dk, again.dk) &&
                  same_bits(made.dv, again.dv))
          << what << ": depends on what lies behind the lengths";
      fill_behind(*data, {0.0F});
    }
  }
  for (const auto& [name, count] : tried) std::printf("%s: %d problems\n", name.c_str(), count);
  EXPECT_GE(tried["naive"], problems);
  EXPECT_GE(tried["flash"], problems);
  EXPECT_GT(tried["decode"], 0);
}

}  // namespace
}  // namespace katt::attention
