#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/linear_problem.hpp"
#include "tile/vec/vec.hpp"

namespace katt::linear {
namespace {

using testing::Matrix;

/// silu(A · gateᵀ) · (A · Bᵀ)
struct Gated {
  std::int64_t m, n, k;
  Dtype dtype;    ///< of the factors
  Dtype c_dtype;  ///< of the result
  std::int64_t gap = 0;
  float alpha = 1.0F;

  std::string name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " " +
           std::string(name_of(dtype)) + "→" + std::string(name_of(c_dtype)) + " gap " +
           std::to_string(gap);
  }
};

class Product {
 public:
  explicit Product(const Gated& p)
      : problem_(p),
        a_(Backend::openmp, p.dtype, p.m, p.k, p.gap,
           testing::random_values(p.m * p.k, 1, p.dtype)),
        gate_(Backend::openmp, p.dtype, p.n, p.k, 2 * p.gap,
              testing::random_values(p.n * p.k, 2, p.dtype)),
        up_(Backend::openmp, p.dtype, p.n, p.k, 2 * p.gap,
            testing::random_values(p.n * p.k, 3, p.dtype)) {}

  /// In one product.
  std::vector<float> at_once(const Host& exec, const char* unit) const {
    const Matrix c = result();
    multiply(exec, up_, c, unit, gate_.ref());
    EXPECT_TRUE(c.gaps_untouched()) << problem_.name();
    return c.values();
  }

  /// Both halves stored, and then swiglu.
  std::vector<float> in_steps(const Host& exec, const char* unit) const {
    const Matrix g = result();
    const Matrix u = result();
    const Matrix c = result();
    multiply(exec, gate_, g, unit, {});
    multiply(exec, up_, u, unit, {});
    testing::run_variant(exec, swiglu::forward_variants<Host>(),
                         swiglu::ForwardArgs{.gate = g.ref(), .up = u.ref(), .out = c.ref()},
                         {.variant = "fused"});
    return c.values();
  }

 private:
  Matrix result() const {
    return Matrix(Backend::openmp, problem_.c_dtype, problem_.m, problem_.n, problem_.gap);
  }
  void multiply(const Host& exec, const Matrix& b, const Matrix& c, const char* unit,
                ConstTensorRef<2> gate) const {
    const GemmArgs args{.a = a_.ref(),
                        .b = b.ref(),
                        .c = c.ref(),
                        .trans_b = true,
                        .alpha = problem_.alpha,
                        .gate = gate};
    const GemmEngine<Host>* engine = &fastest_engine<Host>(args, unit);
    const bench::Buffer workspace =
        testing::poisoned_workspace(Backend::openmp, gemm_workspace_bytes(exec, args, engine));
    gemm(exec, args, workspace.workspace(), "katt::linear::gemm", engine);
    exec.fence();
  }

  Gated problem_;
  Matrix a_, gate_, up_;
};

/// The sums of the engines of a unit, by default of any, are the same, and so are their roundings.
void expect_same_bits(const Gated& p, const char* unit = "") {
  const Product product(p);
  const Host exec;
  EXPECT_EQ(product.at_once(exec, unit), product.in_steps(exec, unit)) << p.name();
}

TEST(GatedProduct, HasTheBitsOfItsSteps) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    // A row alone, few rows, panels; ragged everywhere; sums of several passes; more rows than columns.
    for (const Gated& p :
         {Gated{1, 1, 1, dtype, dtype}, Gated{1, 100, 257, dtype, dtype, 3},
          Gated{5, 97, 320, dtype, dtype}, Gated{64, 130, 33, dtype, dtype},
          Gated{65, 16, 64, dtype, dtype}, Gated{67, 1, 31, dtype, dtype, 1},
          Gated{100, 257, 1030, dtype, dtype, 5}, Gated{300, 48, 96, dtype, dtype},
          Gated{131, 1040, 576, dtype, dtype}, Gated{1000, 96, 700, dtype, dtype}}) {
      expect_same_bits(p);
      if (dtype == Dtype::bf16) expect_same_bits(p, tile::vector_name);
    }
    expect_same_bits({70, 50, 90, dtype, Dtype::f32, 0, 0.5F});
    expect_same_bits({3, 50, 90, dtype, Dtype::bf16, 0, 0.5F});
  }
}

TEST(GatedProduct, TakesEveryUnitForBf16) {
  for (const char* unit : {"amx", "avx512_bf16"}) {
    const Gated p{130, 100, 200, Dtype::bf16, Dtype::bf16};
    const Product product(p);
    const Matrix c(Backend::openmp, p.dtype, p.m, p.n);
    const Matrix a(Backend::openmp, p.dtype, p.m, p.k);
    const Matrix b(Backend::openmp, p.dtype, p.n, p.k);
    const GemmArgs args{.a = a.ref(), .b = b.ref(), .c = c.ref(), .trans_b = true};
    if (!gemm_supports(fastest_engine<Host>(args, unit), args).is_ok()) continue;
    // Rows of weights as the left factor, too: read from where they lie or packed.
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{20, 96, 512},
                                  {70, 96, 512},
                                  {70, 90, 512},
                                  {70, 2000, 96},
                                  {130, 100, 1500}}) {
      expect_same_bits({m, n, k, Dtype::bf16, Dtype::bf16}, unit);
    }
  }
}

/// With a large A, the product computes some rows of C at a time, or a few columns where these are few.
TEST(GatedProduct, OfManyRowsAndLongSums) {
  expect_same_bits({600, 600, 4000, Dtype::f32, Dtype::f32});
  expect_same_bits({300, 1500, 2100, Dtype::f16, Dtype::f16});
  expect_same_bits({1501, 301, 4200, Dtype::f32, Dtype::f32});
  expect_same_bits({1501, 131, 9001, Dtype::f16, Dtype::f32});
}

TEST(GatedProduct, RefusesWhatItCannotDo) {
  const Host exec;
  const auto refusal = [&](const GemmArgs& args) -> std::string {
    return test::message_of([&] { (void)gemm_workspace_bytes(exec, args); });
  };
  const Matrix a(Backend::openmp, Dtype::f32, 3, 8);
  const Matrix b(Backend::openmp, Dtype::f32, 5, 8);
  const Matrix apart(Backend::openmp, Dtype::f32, 5, 8, 2);
  const Matrix longer(Backend::openmp, Dtype::f32, 6, 8);
  const Matrix other(Backend::openmp, Dtype::bf16, 5, 8);
  const Matrix c(Backend::openmp, Dtype::f32, 3, 5);
  GemmArgs args{.a = a.ref(), .b = b.ref(), .c = c.ref(), .trans_b = true, .gate = b.ref()};
  EXPECT_EQ(refusal(args), "");
  const auto with_gate = [&](const Matrix& gate) {
    GemmArgs changed = args;
    changed.gate = gate.ref();
    return refusal(changed);
  };
  EXPECT_EQ(with_gate(longer), "gemm: n of gate: holds 6, expected 5");
  EXPECT_EQ(with_gate(apart), "gemm: distance of the rows of gate: holds 10, expected 8");
  const std::string kind =
      "gemm: gate: expected the dtype of b, trans_b alone, neither beta nor bias";
  EXPECT_EQ(with_gate(other), kind);
  args.beta = 1.0F;
  EXPECT_EQ(refusal(args), kind);
}

}  // namespace
}  // namespace katt::linear
