#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"
#include "testing/compare.hpp"

namespace katt::testing {

/// One element of an output: its float64 value, and what an unfused implementation in the dtype
/// makes of it, rounding wherever it stores.
struct ExpectedValue {
  std::int64_t index = 0;  ///< row-major
  double exact = 0;
  double unfused = 0;
};

/// What the elements of one output may differ by: 2·max|unfused − exact| + 2·max|round(exact) −
/// exact|. The second term is no larger than that of FlashAttention-3's rule, rounding_loss(),
/// whose offset would hide errors of outputs that are much smaller than 0.3.
inline double error_limit(std::span<const ExpectedValue> values, Dtype dtype) {
  double unfused = 0;
  double rounding = 0;
  for (const ExpectedValue& value : values) {
    const double rounded = round_to(dtype, static_cast<float>(value.exact));
    unfused = std::max(unfused, std::abs(value.unfused - value.exact));
    rounding = std::max(rounding, std::abs(rounded - value.exact));
  }
  return 2 * unfused + 2 * rounding;
}

/// Adds every expected value of an output of so many columns to a comparison.
inline void add_all(Comparison& comparison, const char* name, std::span<const float> got,
                    std::int64_t columns, std::span<const ExpectedValue> expected, Dtype dtype) {
  const double limit = error_limit(expected, dtype);
  for (const ExpectedValue& value : expected) {
    comparison.add(name, {value.index / columns, value.index % columns},
                   got[static_cast<std::size_t>(value.index)], value.exact, limit);
  }
}

}  // namespace katt::testing
