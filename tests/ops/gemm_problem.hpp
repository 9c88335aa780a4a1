#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ops/linear/gemm/gemm.hpp"
#include "tests/ops/linear_problem.hpp"

/// Products of two matrices as tests state them.
namespace katt::testing::product {

using linear::GemmArgs;
using linear::GemmEngine;

/// A product on host values.
struct Problem {
  std::int64_t m = 0, n = 0, k = 0;
  Dtype a_dtype = Dtype::f32, b_dtype = Dtype::f32, c_dtype = Dtype::f32;
  bool trans_a = false, trans_b = false, bias = false;
  float alpha = 1.0F, beta = 0.0F;
  std::int64_t gap = 0;

  std::string name() const {
    const auto text = [](Dtype dtype) { return std::string(name_of(dtype)); };
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " " +
           text(a_dtype) + (trans_a ? "ᵀ" : "") + "·" + text(b_dtype) + (trans_b ? "ᵀ" : "") + "→" +
           text(c_dtype) + " beta " + std::to_string(beta) + " gap " + std::to_string(gap);
  }
};

/// A product of matrices of one dtype; the rest as in `more`.
inline Problem alike(std::int64_t m, std::int64_t n, std::int64_t k, Dtype dtype,
                     Problem more = {}) {
  more.m = m;
  more.n = n;
  more.k = k;
  more.a_dtype = more.b_dtype = more.c_dtype = dtype;
  return more;
}

/// Random operands of a problem, rounded to their dtypes.
struct Values {
  std::vector<float> a, b, c, bias;
  explicit Values(const Problem& p)
      : a(random_values(p.m * p.k, 1, p.a_dtype)),
        b(random_values(p.n * p.k, 2, p.b_dtype)),
        c(random_values(p.m * p.n, 3, p.c_dtype)),
        bias(random_values(p.n, 4, Dtype::bf16)) {}
};

/// C, computed by an engine, or by the fastest where none is given.
template <class Exec>
std::vector<float> run(const Exec& exec, const Problem& p, const Values& v,
                       const GemmEngine<Exec>* engine = nullptr) {
  constexpr Backend backend = backend_of<Exec>();
  const auto [a_rows, a_columns] = p.trans_a ? std::pair{p.k, p.m} : std::pair{p.m, p.k};
  const auto [b_rows, b_columns] = p.trans_b ? std::pair{p.n, p.k} : std::pair{p.k, p.n};
  const Matrix a(backend, p.a_dtype, a_rows, a_columns, p.gap, v.a);
  const Matrix b(backend, p.b_dtype, b_rows, b_columns, 2 * p.gap, v.b);
  // With beta = 0 the old values of C are NaN and must not be read.
  const Matrix c = p.beta == 0.0F ? Matrix(backend, p.c_dtype, p.m, p.n, p.gap)
                                  : Matrix(backend, p.c_dtype, p.m, p.n, p.gap, v.c);
  const bench::Tensor<1> bias("bias", backend, Dtype::bf16, {p.n});
  bias.upload(v.bias);
  GemmArgs args{.a = a.ref(),
                .b = b.ref(),
                .c = c.ref(),
                .trans_a = p.trans_a,
                .trans_b = p.trans_b,
                .alpha = p.alpha,
                .beta = p.beta};
  if (p.bias) args.bias = bias.ref();
  const bench::Buffer workspace =
      testing::poisoned_workspace(backend, gemm_workspace_bytes(exec, args, engine));
  gemm(exec, args, workspace.workspace(), "katt::linear::gemm", engine);
  exec.fence();
  EXPECT_TRUE(c.gaps_untouched()) << p.name();
  return c.values();
}

/// The product in float64, and as products rounded in f32 give it.
inline std::vector<ExpectedValue> reference(const Problem& p, const Values& v) {
  struct Pair {
    double exact, unfused;
  };
  return expect_all(p.m, p.n, [&](std::int64_t i, std::int64_t j) {
    double exact = 0;
    float single = 0;
    for (std::int64_t l = 0; l < p.k; ++l) {
      const float a = v.a[static_cast<std::size_t>(p.trans_a ? l * p.m + i : i * p.k + l)];
      const float b = v.b[static_cast<std::size_t>(p.trans_b ? j * p.k + l : l * p.n + j)];
      exact += static_cast<double>(a) * static_cast<double>(b);
      single += a * b;
    }
    const float c = v.c[static_cast<std::size_t>(i * p.n + j)];
    const float bias = p.bias ? v.bias[static_cast<std::size_t>(j)] : 0.0F;
    exact = static_cast<double>(p.alpha) * exact + static_cast<double>(p.beta) * c + bias;
    const float rounded = round_to(p.c_dtype, p.alpha * single + p.beta * c + bias);
    return Pair{exact, static_cast<double>(rounded)};
  });
}

/// Holds every engine that accepts the problem against a reference in float64, on every backend.
inline void expect_reference(const Problem& p) {
  const Values values(p);
  const auto expected = reference(p, values);
  for_each_exec([&]<class Exec>(const Exec& exec) {
    GemmArgs shape;
    shape.a = {nullptr, p.a_dtype, {p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k}};
    shape.b = {nullptr, p.b_dtype, {p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n}};
    shape.c = {nullptr, p.c_dtype, {p.m, p.n}};
    shape.trans_a = p.trans_a;
    shape.trans_b = p.trans_b;
    if (p.bias) shape.bias = {nullptr, Dtype::bf16, {p.n}};
    EXPECT_TRUE(gemm_supports(fastest_engine<Exec>(shape), shape).is_ok()) << p.name();
    for (const GemmEngine<Exec>& engine : linear::gemm_engines<Exec>()) {
      if (!gemm_supports(engine, shape).is_ok()) continue;
      expect_close(p.name() + " " + engine.name, run(exec, p, values, &engine), p.n, expected,
                   p.c_dtype);
    }
  });
}

}  // namespace katt::testing::product
