#pragma once

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "op/reference/expected.hpp"
#include "tests/ops/matrix.hpp"
#include "tests/slope.hpp"

/// Code that the tests of linear and of the operators made of it share.
namespace katt::testing {

/// All values of a rows × columns output, by a function of (row, column) that has `exact` and
/// `unfused`.
template <class F>
std::vector<ExpectedValue> expect_all(std::int64_t rows, std::int64_t columns, const F& reference) {
  std::vector<ExpectedValue> expected;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto value = reference(r, c);
      expected.push_back({r * columns + c, value.exact, value.unfused});
    }
  }
  return expected;
}

/// Passes when every value is within the limit of its output.
inline void expect_close(const std::string& what, std::span<const float> got, std::int64_t columns,
                         std::span<const ExpectedValue> expected, Dtype dtype) {
  Comparison comparison;
  add_all(comparison, what.c_str(), got, columns, expected, dtype);
  const Status status = comparison.result().status;
  EXPECT_TRUE(status.is_ok()) << status.reason();
}

/// Passes when a gradient agrees with central differences of loss(), which reads the values.
template <class Loss>
void expect_gradient(std::vector<float>& values, std::span<const double> gradient, float step,
                     double tolerance, const Loss& loss) {
  ASSERT_EQ(values.size(), gradient.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(test::slope(values[i], step, loss), gradient[i], tolerance) << "value " << i;
  }
}

/// Gathers a number from every element of expected values.
inline std::vector<double> exact_of(std::span<const ExpectedValue> expected) {
  std::vector<double> values;
  for (const ExpectedValue& value : expected) values.push_back(value.exact);
  return values;
}

}  // namespace katt::testing
