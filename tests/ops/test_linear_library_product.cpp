#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "op/reference/fill.hpp"
#include "ops/linear/library_product.hpp"

namespace katt {
namespace {

/// Matrices whose rows lie `gap` elements further apart than they are long.
struct Problem {
  std::int64_t m, n, k, gap;
  LibraryProduct product;
  std::vector<float> a, b, c;

  Problem(std::int64_t rows, std::int64_t columns, std::int64_t depth, const LibraryProduct& kind,
          std::int64_t between, std::uint64_t seed)
      : m(rows), n(columns), k(depth), gap(between), product(kind) {
    const auto values = [&](std::int64_t count, std::uint64_t which) {
      std::vector<float> made(static_cast<std::size_t>(count));
      testing::fill(made, seed + which, Dtype::f32);
      return made;
    };
    a = values(a_rows() * (a_columns() + gap), 0);
    b = values(b_rows() * (b_columns() + gap), 1);
    c = values(m * (n + gap), 2);
    // With beta = 0 the old values are not read.
    if (product.beta == 0.0F) c.assign(c.size(), std::numeric_limits<float>::quiet_NaN());
  }

  [[nodiscard]] std::int64_t a_rows() const { return product.trans_a ? k : m; }
  [[nodiscard]] std::int64_t a_columns() const { return product.trans_a ? m : k; }
  [[nodiscard]] std::int64_t b_rows() const { return product.trans_b ? n : k; }
  [[nodiscard]] std::int64_t b_columns() const { return product.trans_b ? k : n; }

  [[nodiscard]] LibraryCall call(std::vector<float>& result) const {
    return {product,
            {a.data(), a_rows(), a_columns(), a_columns() + gap},
            {b.data(), b_rows(), b_columns(), b_columns() + gap},
            {result.data(), m, n, n + gap}};
  }

  void expect_product(const std::vector<float>& result, const std::string& what) const {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n + gap; ++j) {
        const auto at = static_cast<std::size_t>(i * (n + gap) + j);
        if (j >= n) {  // between the rows nothing is written
          EXPECT_TRUE(result[at] == c[at] || std::isnan(c[at])) << what;
          continue;
        }
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const std::int64_t of_a = product.trans_a ? l * (m + gap) + i : i * (k + gap) + l;
          const std::int64_t of_b = product.trans_b ? j * (k + gap) + l : l * (n + gap) + j;
          sum += static_cast<double>(a[static_cast<std::size_t>(of_a)]) *
                 static_cast<double>(b[static_cast<std::size_t>(of_b)]);
        }
        const double old = product.beta == 0.0F ? 0.0 : static_cast<double>(product.beta * c[at]);
        const double expected = static_cast<double>(product.alpha) * sum + old;
        ASSERT_NEAR(result[at], expected, 1e-6 * static_cast<double>(k + 1))
            << what << " at " << i << ", " << j;
      }
    }
  }
};

const std::vector<std::array<std::int64_t, 3>> shapes{
    {1, 1, 1},    {1, 67, 131}, {1, 4100, 3}, {67, 1, 9},     {3, 5, 1},       {37, 33, 7},
    {16, 16, 40}, {31, 130, 5}, {500, 17, 6}, {130, 300, 70}, {2, 1500, 1001}, {5, 2500, 211}};

template <class F>
void for_each_problem(const F& f) {
  for (const auto& [m, n, k] : shapes) {
    for (const bool trans_a : {false, true}) {
      for (const bool trans_b : {false, true}) {
        for (const std::int64_t gap : {0, 3}) {
          // The library reads a matrix of one column as a dense vector.
          if (gap > 0 && (m == 1 || n == 1 || k == 1)) continue;
          const float beta = gap == 0 ? 0.0F : 2.0F;
          f(LibraryProduct{trans_a, trans_b, 0.5F, beta}, m, n, k, gap,
            std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) +
                (trans_a ? " Aᵀ" : "") + (trans_b ? " Bᵀ" : "") + " gap " + std::to_string(gap));
        }
      }
    }
  }
}

std::vector<Host> hosts() {
#if defined(KOKKOS_ENABLE_OPENMP)
  return {Host(1), Host(2)};
#else
  return {Host()};
#endif
}

TEST(LibraryProduct, JoinsThePiecesOfTheThreads) {
  for (const Host& exec : hosts()) {
    for_each_problem([&](const LibraryProduct& product, std::int64_t m, std::int64_t n,
                         std::int64_t k, std::int64_t gap, const std::string& what) {
      const Problem problem(m, n, k, product, gap, 1);
      std::vector<float> result = problem.c;
      const LibraryCall call = problem.call(result);
      library_product(exec, "test", call.product, call.a, call.b, call.c);
      problem.expect_product(result, what);
    });
  }
}

TEST(LibraryProduct, HasNothingToDoWithoutRowsOrColumns) {
  for (const Host& exec : hosts()) {
    float value = 1.0F;
    library_product(exec, "test", {}, {&value, 0, 1}, {&value, 1, 1}, {&value, 0, 1});
    library_product(exec, "test", {}, {&value, 1, 1}, {&value, 1, 0}, {&value, 1, 0});
    EXPECT_EQ(value, 1.0F);
  }
}

TEST(LibraryProduct, OfABatchEachIsOneOfItsOwn) {
  for (const Host& exec : hosts()) {
    for_each_problem([&](const LibraryProduct& product, std::int64_t m, std::int64_t n,
                         std::int64_t k, std::int64_t gap, const std::string& what) {
      std::vector<Problem> problems;
      std::vector<std::vector<float>> results;
      for (std::uint64_t i = 0; i < 5; ++i) {
        problems.emplace_back(m, n, k, product, gap, 10 * i + 1);
        results.push_back(problems.back().c);
      }
      library_products(exec, "test", 5, [&](std::int64_t i) {
        return problems[static_cast<std::size_t>(i)].call(results[static_cast<std::size_t>(i)]);
      });
      for (std::size_t i = 0; i < problems.size(); ++i) {
        problems[i].expect_product(results[i], what);
      }
    });
  }
}

}  // namespace
}  // namespace katt
