#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/linear_problem.hpp"

namespace katt::linear {
namespace {

using testing::Matrix;

/// A product, one of whose operands has scales of its elements.
struct Scaled {
  std::int64_t m, n, k;
  Dtype dtype;
  bool trans_a = false, trans_b = false, of_a = true, gated = false;
  std::int64_t gap = 0;

  std::pair<std::int64_t, std::int64_t> a() const { return trans_a ? pair(k, m) : pair(m, k); }
  std::pair<std::int64_t, std::int64_t> b() const { return trans_b ? pair(n, k) : pair(k, n); }
  std::string name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + " " +
           std::string(name_of(dtype)) + (trans_a ? " aᵀ" : "") + (trans_b ? " bᵀ" : "") +
           (of_a ? " of a" : " of b") + (gated ? " gated" : "") + " gap " + std::to_string(gap);
  }

 private:
  static std::pair<std::int64_t, std::int64_t> pair(std::int64_t rows, std::int64_t columns) {
    return {rows, columns};
  }
};

/// The values of the matrix that has scales, as it would be stored.
std::vector<float> stored(const std::vector<float>& matrix, const std::vector<float>& rows,
                          const std::vector<float>& columns, Dtype dtype) {
  std::vector<float> values;
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    const std::size_t row = i / columns.size();
    const float value = matrix[i] * rows[2 * row] * rows[2 * row + 1];
    values.push_back(round_to(dtype, value * columns[i % columns.size()]));
  }
  return values;
}

/// The bits of the product by an engine, with the scales or of the stored matrix.
std::vector<float> product(const Host& exec, const Scaled& p, const GemmEngine<Host>& engine,
                           bool with_scales) {
  const auto values = [&](std::pair<std::int64_t, std::int64_t> shape, std::uint64_t seed) {
    return testing::random_values(shape.first * shape.second, seed, p.dtype);
  };
  std::vector<float> a = values(p.a(), 1);
  std::vector<float> b = values(p.b(), 2);
  const auto [rows, columns] = p.of_a ? p.a() : p.b();
  const auto of_rows = testing::random_values(2 * rows, 3, Dtype::f32);
  const auto of_columns = testing::random_values(columns, 4, p.dtype);
  if (!with_scales) {
    std::vector<float>& matrix = p.of_a ? a : b;
    matrix = stored(matrix, of_rows, of_columns, p.dtype);
  }
  const Backend backend = Backend::openmp;
  const Matrix a_matrix(backend, p.dtype, p.a().first, p.a().second, p.gap, a);
  const Matrix b_matrix(backend, p.dtype, p.b().first, p.b().second, 2 * p.gap, b);
  const Matrix gate(backend, p.dtype, p.b().first, p.b().second, 2 * p.gap, values(p.b(), 5));
  const Matrix c(backend, p.dtype, p.m, p.n, p.gap);
  const Matrix row_scales(backend, Dtype::f32, rows, 2, 0, of_rows);
  const bench::Tensor<1> column_scales("columns", backend, p.dtype, {columns});
  column_scales.upload(of_columns);
  GemmArgs args{.a = a_matrix.ref(),
                .b = b_matrix.ref(),
                .c = c.ref(),
                .trans_a = p.trans_a,
                .trans_b = p.trans_b};
  if (p.gated) args.gate = gate.ref();
  ElementScales& scales = p.of_a ? args.a_scales : args.b_scales;
  if (with_scales) scales = {row_scales.ref(), column_scales.ref()};
  const bench::Buffer workspace =
      testing::poisoned_workspace(backend, gemm_workspace_bytes(exec, args, &engine));
  gemm(exec, args, workspace.workspace(), "katt::linear::gemm", &engine);
  EXPECT_TRUE(c.gaps_untouched()) << p.name();
  return c.values();
}

/// Whether an engine takes the product, without memory.
bool takes(const GemmEngine<Host>& engine, const Scaled& p) {
  const auto [rows, columns] = p.of_a ? p.a() : p.b();
  GemmArgs args{.a = TensorRef<2>(nullptr, p.dtype, {p.a().first, p.a().second}),
                .b = TensorRef<2>(nullptr, p.dtype, {p.b().first, p.b().second}),
                .c = {nullptr, p.dtype, {p.m, p.n}},
                .trans_a = p.trans_a,
                .trans_b = p.trans_b};
  if (p.gated) args.gate = args.b;
  ElementScales& scales = p.of_a ? args.a_scales : args.b_scales;
  scales.rows = TensorRef<2>(nullptr, Dtype::f32, {rows, 2});
  scales.columns = TensorRef<1>(nullptr, p.dtype, {columns});
  return gemm_supports(engine, args).is_ok();
}

/// Every engine that takes scales gives the bits that it gives for the stored matrix; counts the products.
void expect_bits_of_stored(const Scaled& p, std::map<std::string, int>& taken) {
  for (const GemmEngine<Host>& engine : gemm_engines<Host>()) {
    if (!takes(engine, p)) continue;
    ++taken[engine.name];
    const auto expected = product(serial_host(), p, engine, false);
    EXPECT_EQ(product(Host(2), p, engine, true), expected) << engine.name << " " << p.name();
  }
}

TEST(GemmScales, GiveTheBitsOfAStoredMatrix) {
  struct Shape {
    std::int64_t m, n, k;
  };
  std::map<std::string, int> taken;
  const std::vector<Shape> shapes{{1, 40, 64},    {3, 33, 70},     {64, 57, 33},
                                  {113, 50, 300}, {113, 130, 400}, {130, 20, 1056}};
  for (const auto& [m, n, k] : shapes) {
    for (const Dtype dtype : all_dtypes) {
      for (const int kind : {0, 1, 2, 3, 4, 5, 6, 7}) {
        expect_bits_of_stored({.m = m,
                               .n = n,
                               .k = k,
                               .dtype = dtype,
                               .trans_a = kind % 2 == 1,
                               .trans_b = kind / 2 % 2 == 1,
                               .of_a = kind < 4,
                               .gap = kind % 3},
                              taken);
      }
      expect_bits_of_stored(
          {.m = m, .n = n, .k = k, .dtype = dtype, .trans_b = true, .gated = true}, taken);
    }
  }
  // Sums of few terms: dweight of few tokens.
  expect_bits_of_stored(
      {.m = 70, .n = 141, .k = 7, .dtype = Dtype::f16, .trans_a = true, .of_a = false}, taken);
  // A of a gated product in parts of its rows.
  expect_bits_of_stored(
      {.m = 1501, .n = 301, .k = 4200, .dtype = Dtype::f32, .trans_b = true, .gated = true}, taken);
  for (const GemmEngine<Host>& engine : gemm_engines<Host>()) {
    const bool is_there = engine.unit_refusal == nullptr || engine.unit_refusal().empty();
    const bool takes_none = std::string(engine.name) == "library";
    EXPECT_EQ(taken[engine.name] > 0, is_there && !takes_none) << engine.name;
  }
}

// B in slices of its columns, which the scales follow.
TEST(GemmScales, FollowTheSlicesOfAWideProduct) {
  std::map<std::string, int> taken;
  for (const bool trans_b : {false, true}) {
    expect_bits_of_stored(
        {.m = 113, .n = 12000, .k = 5, .dtype = Dtype::f32, .trans_b = trans_b, .of_a = false},
        taken);
  }
  EXPECT_GT(taken["shared"], 0);
}

TEST(GemmScales, OfOtherShapesAreRefused) {
  const ConstTensorRef<2> matrix = TensorRef<2>(nullptr, Dtype::bf16, {16, 16});
  GemmArgs args{.a = matrix, .b = matrix, .c = {nullptr, Dtype::bf16, {16, 16}}};
  const auto message = [&] {
    return test::message_of([&] { (void)gemm_workspace_bytes(serial_host(), args); });
  };
  args.a_scales = {TensorRef<2>(nullptr, Dtype::f32, {15, 2}),
                   TensorRef<1>(nullptr, Dtype::bf16, {16})};
  EXPECT_EQ(message(), "gemm: a_scales.rows: holds shape (15, 2), expected (16, 2)");
  args.a_scales.rows = TensorRef<2>(nullptr, Dtype::f32, {16, 2});
  EXPECT_EQ(message(), "");
  args.a_scales.columns = TensorRef<1>(nullptr, Dtype::f32, {16});
  EXPECT_EQ(message(), "gemm: a_scales.columns: holds f32, expected bf16");
  args.b_scales = {args.a_scales.rows, TensorRef<1>(nullptr, Dtype::bf16, {16})};
  args.a_scales = {};
  args.trans_b = true;
  args.gate = matrix;
  EXPECT_EQ(message(), "gemm: b_scales: expected none with a gate");
}

}  // namespace
}  // namespace katt::linear
