// The layer against the same formula in float64, written here as plain loops, and its gradients
// against finite differences of that formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "nn/arena.hpp"
#include "nn/model/multi_head_attention.hpp"
#include "ops/rope/rope.hpp"
#include "tests/ops/matrix.hpp"
#include "tests/slope.hpp"

namespace katt::nn {
namespace {

using testing::Matrix;
using Values = std::vector<double>;

const Kernels fused{};
const Kernels naive = [] {
  Kernels kernels;
  kernels.linear = kernels.rope = kernels.attention = "naive";
  kernels.products_add = false;
  return kernels;
}();

struct Shape {
  std::int64_t batch = 1, seq = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  Dtype dtype = Dtype::f32;

  std::int64_t tokens() const { return batch * seq; }
  std::int64_t qkv_features() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t attended_features() const { return heads * head_dim; }
};

/// Host values of a problem: everything that a finite difference can nudge is a double.
struct Problem {
  Shape s;
  bool causal = true;
  bool rotary = true;
  Values x, w_qkv, b_qkv, w_out, b_out, dout;
};

Values doubles(std::int64_t count, std::uint64_t seed, Dtype dtype, float scale) {
  const auto values = testing::random_values(count, seed, dtype, scale);
  return {values.begin(), values.end()};
}

std::vector<float> floats(const Values& values) { return {values.begin(), values.end()}; }

Problem make_problem(const Shape& s) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.hidden)));
  return {.s = s,
          .x = doubles(s.tokens() * s.hidden, 1, s.dtype, 1.0F),
          .w_qkv = doubles(s.qkv_features() * s.hidden, 2, s.dtype, scale),
          .b_qkv = doubles(s.qkv_features(), 3, s.dtype, 0.5F),
          .w_out = doubles(s.hidden * s.attended_features(), 4, s.dtype, scale),
          .b_out = doubles(s.hidden, 5, s.dtype, 0.5F),
          .dout = doubles(s.tokens() * s.hidden, 6, s.dtype, 1.0F)};
}

/// rows × out = x · wᵀ + b
Values project(const Values& x, const Values& w, const Values& b, std::int64_t in) {
  const auto columns = static_cast<std::int64_t>(b.size());
  const auto rows = static_cast<std::int64_t>(x.size()) / in;
  Values out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      double sum = b[static_cast<std::size_t>(c)];
      for (std::int64_t i = 0; i < in; ++i) {
        sum += x[static_cast<std::size_t>(r * in + i)] * w[static_cast<std::size_t>(c * in + i)];
      }
      out.push_back(sum);
    }
  }
  return out;
}

Values reference(const Problem& p) {
  const Shape& s = p.s;
  const std::int64_t width = s.qkv_features();
  const std::int64_t d = s.head_dim;
  Values qkv = project(p.x, p.w_qkv, p.b_qkv, s.hidden);
  if (p.rotary) {
    for (std::int64_t t = 0; t < s.tokens(); ++t) {
      for (std::int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
        double* head = &qkv[static_cast<std::size_t>(t * width + h * d)];
        for (std::int64_t i = 0; i < d / 2; ++i) {
          const double angle =
              static_cast<double>(t % s.seq) *
              std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(d));
          const double a = head[i];
          const double b = head[i + d / 2];
          head[i] = a * std::cos(angle) - b * std::sin(angle);
          head[i + d / 2] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
  }
  Values attended(static_cast<std::size_t>(s.tokens() * s.attended_features()));
  for (std::int64_t t = 0; t < s.tokens(); ++t) {
    const std::int64_t first = t / s.seq * s.seq;
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t kv = h / (s.heads / s.kv_heads);
      const auto at = [&](std::int64_t token, std::int64_t head) {
        return &qkv[static_cast<std::size_t>(token * width + head * d)];
      };
      Values weights;
      double total = 0;
      for (std::int64_t j = 0; j < (p.causal ? t - first + 1 : s.seq); ++j) {
        double score = 0;
        for (std::int64_t i = 0; i < d; ++i) score += at(t, h)[i] * at(first + j, s.heads + kv)[i];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        total += weights.back();
      }
      for (std::size_t j = 0; j < weights.size(); ++j) {
        const double* v = at(first + static_cast<std::int64_t>(j), s.heads + s.kv_heads + kv);
        for (std::int64_t i = 0; i < d; ++i) {
          attended[static_cast<std::size_t>(t * s.attended_features() + h * d + i)] +=
              weights[j] / total * v[i];
        }
      }
    }
  }
  return project(attended, p.w_out, p.b_out, s.attended_features());
}

template <class Exec>
void forward(const MultiHeadAttention<Exec>& layer, Runner<Exec>& runner,
             const AttentionWeights& weights, const TensorRef<2>& x, const AttentionActivations& at,
             BatchShape shape, const TensorRef<2>& out) {
  layer.project_in(runner, weights, x, at, shape, {});
  layer.attend_own(runner, at, shape);
  layer.project_out(runner, weights, at, out);
}

struct Result {
  std::vector<float> out, dx, dw_qkv, db_qkv, dw_out, db_out;
  bool operator==(const Result&) const = default;
};

template <class Exec>
Result run(const Exec& exec, const Problem& p, const Kernels& kernels) {
  constexpr Backend backend = backend_of<Exec>();
  const Shape& s = p.s;
  const auto matrix = [&](std::int64_t rows, std::int64_t columns, const Values& values) {
    return Matrix(backend, s.dtype, rows, columns, 0, floats(values));
  };
  const auto empty = [&](std::int64_t rows, std::int64_t columns) {
    return Matrix(backend, s.dtype, rows, columns);
  };
  const auto zeros = [&](std::int64_t rows, std::int64_t columns) {
    return Matrix(backend, Dtype::f32, rows, columns, 0,
                  std::vector<float>(static_cast<std::size_t>(rows * columns)));
  };
  const auto row = [](const Matrix& m) {
    return TensorRef<1>(m.ref().data, m.ref().dtype, {m.ref().extent[1]});
  };
  const Matrix x = matrix(s.tokens(), s.hidden, p.x);
  const Matrix w_qkv = matrix(s.qkv_features(), s.hidden, p.w_qkv);
  const Matrix b_qkv = matrix(1, s.qkv_features(), p.b_qkv);
  const Matrix w_out = matrix(s.hidden, s.attended_features(), p.w_out);
  const Matrix b_out = matrix(1, s.hidden, p.b_out);
  const Matrix dout = matrix(s.tokens(), s.hidden, p.dout);
  const Matrix qkv = empty(s.tokens(), s.qkv_features());
  const Matrix attended = empty(s.tokens(), s.attended_features());
  const bench::Tensor<3> lse("lse", backend, Dtype::f32, {s.batch, s.heads, s.seq});
  const bench::Tensor<2> cache("cache", backend, Dtype::f32, {s.seq, s.head_dim});
  rope::build_cache(exec, {}, cache.ref());

  const MultiHeadAttention<Exec> layer(
      {.heads = s.heads,
       .kv_heads = s.kv_heads,
       .head_dim = s.head_dim,
       .mask = {.causal = p.causal}},
      kernels, p.rotary ? ConstTensorRef<2>(cache.ref()) : ConstTensorRef<2>());
  const AttentionWeights weights{
      .qkv = w_qkv.ref(), .qkv_bias = row(b_qkv), .o = w_out.ref(), .o_bias = row(b_out)};
  const AttentionActivations at{.qkv = qkv.ref(), .attended = attended.ref(), .lse = lse.ref()};
  const BatchShape shape{.batch = s.batch, .seq = s.seq};
  const Matrix out = empty(s.tokens(), s.hidden);
  Runner<Exec> runner(exec);
  forward(layer, runner, weights, x.ref(), at, shape, out.ref());

  const Matrix dx = empty(s.tokens(), s.hidden);
  const Matrix dw_qkv = zeros(s.qkv_features(), s.hidden);
  const Matrix db_qkv = zeros(1, s.qkv_features());
  const Matrix dw_out = zeros(s.hidden, s.attended_features());
  const Matrix db_out = zeros(1, s.hidden);
  const Matrix dqkv = empty(s.tokens(), s.qkv_features());
  const Matrix dattended = empty(s.tokens(), s.attended_features());
  const Matrix staging =
      empty(1, std::max(s.qkv_features(), s.attended_features()) * std::max(s.hidden, s.head_dim));
  const AttentionWeights gradients{
      .qkv = dw_qkv.ref(), .qkv_bias = row(db_qkv), .o = dw_out.ref(), .o_bias = row(db_out)};
  const AttentionBuffers buffers{
      .dqkv = dqkv.ref(), .dattended = dattended.ref(), .staging = staging.ref()};
  layer.project_out_backward(runner, weights, gradients, at, dout.ref(), buffers);
  layer.attend_backward(runner, at, shape, buffers);
  layer.project_in_backward(runner, weights, gradients, x.ref(), dx.ref(), buffers);
  exec.fence();
  return {out.values(),    dx.values(),     dw_qkv.values(),
          db_qkv.values(), dw_out.values(), db_out.values()};
}

double largest_error(const std::vector<float>& got, const Values& expected) {
  double error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!(difference <= error)) error = difference;  // NaN stays
  }
  return error;
}

/// dL/dvalue for L = Σ out · dout, by central differences of the reference.
double finite_difference(Problem& p, double& value) {
  const auto loss = [&] {
    const Values out = reference(p);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * p.dout[i];
    return sum;
  };
  return test::slope(value, 1e-4, loss);
}

/// Grouped heads, one key/value head, one token, a prime length, two sequences.
const std::vector<Shape> shapes{
    {1, 13, 24, 4, 2, 8}, {2, 7, 40, 3, 1, 16}, {1, 1, 8, 2, 2, 8}, {1, 32, 32, 2, 2, 16}};

TEST(MultiHeadAttention, MatchesTheFormula) {
  for (const Shape& shape : shapes) {
    for (const bool rotary : {false, true}) {
      for (const bool causal : {false, true}) {
        Problem p = make_problem(shape);
        p.rotary = rotary;
        p.causal = causal;
        const Values expected = reference(p);
        testing::for_each_exec([&](const auto& exec) {
          EXPECT_LT(largest_error(run(exec, p, fused).out, expected), 1e-5);
          EXPECT_LT(largest_error(run(exec, p, naive).out, expected), 1e-5);
        });
      }
    }
  }
}

TEST(MultiHeadAttention, GradientsAreThoseOfFiniteDifferences) {
  for (const Shape& shape : shapes) {
    Problem p = make_problem(shape);
    const Result result = run(Kokkos::DefaultExecutionSpace(), p, fused);
    const auto expect_gradient = [&](const char* name, const std::vector<float>& got,
                                     Values& values) {
      ASSERT_EQ(got.size(), values.size());
      for (std::size_t i = 0; i < values.size(); i += values.size() / 9 + 1) {
        const double expected = finite_difference(p, values[i]);
        EXPECT_NEAR(static_cast<double>(got[i]), expected, 2e-4 * (1 + std::abs(expected)))
            << name << "(" << i << ")";
      }
    };
    expect_gradient("dx", result.dx, p.x);
    expect_gradient("dw_qkv", result.dw_qkv, p.w_qkv);
    expect_gradient("db_qkv", result.db_qkv, p.b_qkv);
    expect_gradient("dw_out", result.dw_out, p.w_out);
    expect_gradient("db_out", result.db_out, p.b_out);
  }
}

TEST(MultiHeadAttention, SixteenBitErrorIsThatOfTheNaiveLayer) {
  for (Shape shape : shapes) {
    for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
      shape.dtype = dtype;
      const Problem p = make_problem(shape);
      const Values expected = reference(p);
      double largest = 0;
      for (const double value : expected) largest = std::max(largest, std::abs(value));
      const double step = dtype == Dtype::f16 ? 0x1p-11 : 0x1p-8;
      testing::for_each_exec([&](const auto& exec) {
        const double error = largest_error(run(exec, p, fused).out, expected);
        const double unfused = largest_error(run(exec, p, naive).out, expected);
        EXPECT_LE(error, 2 * unfused + 2 * step * largest) << name_of(dtype);
        EXPECT_LE(unfused, 16 * step * largest) << name_of(dtype);
      });
    }
  }
}

TEST(MultiHeadAttention, BitsDoNotDependOnThreads) {
#if defined(KOKKOS_ENABLE_OPENMP)
  for (const Dtype dtype : all_dtypes) {
    const Problem p = make_problem({1, 150, 96, 6, 2, 16, dtype});
    EXPECT_EQ(run(Kokkos::OpenMP(1), p, fused), run(Kokkos::OpenMP(2), p, fused));
  }
#else
  GTEST_SKIP() << "skipped: this build has no OpenMP";
#endif
}

TEST(MultiHeadAttention, RehearsalAsksForWorkspaceAndRefusesOtherShapes) {
  const Problem p = make_problem(shapes[1]);
  const MultiHeadAttentionConfig config{
      .heads = p.s.heads, .kv_heads = p.s.kv_heads, .head_dim = p.s.head_dim};
  using Exec = Kokkos::DefaultHostExecutionSpace;
  const MultiHeadAttention<Exec> layer(config, fused, {});
  Runner<Exec> dry(Exec(), true);
  Arena arena;
  const auto tensor = [&](std::int64_t rows, std::int64_t columns) {
    return arena.tensor<2>(p.s.dtype, {rows, columns});
  };
  const AttentionWeights weights{.qkv = tensor(config.qkv_size(), p.s.hidden),
                                 .o = tensor(p.s.hidden, config.q_size())};
  const TensorRef<2> x = tensor(p.s.tokens(), p.s.hidden);
  const AttentionActivations at{.qkv = tensor(p.s.tokens(), config.qkv_size()),
                                .attended = tensor(p.s.tokens(), config.q_size())};
  const TensorRef<2> out = tensor(p.s.tokens(), p.s.hidden);
  const BatchShape shape{.batch = p.s.batch, .seq = p.s.seq};
  forward(layer, dry, weights, x, at, shape, out);
  EXPECT_GT(dry.workspace_bytes(), 0U);
  const TensorRef<2> wider = tensor(p.s.tokens(), p.s.hidden + 1);
  EXPECT_THROW(forward(layer, dry, weights, wider, at, shape, out), InputError);
}

TEST(MultiHeadAttention, RefusesUnknownVariants) {
  const Problem p = make_problem(shapes[0]);
  Kernels unknown;
  unknown.attention = "nonsense";
  EXPECT_THROW(run(serial_host(), p, unknown), InputError);
}

}  // namespace
}  // namespace katt::nn
