#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"
#include "testing/compare.hpp"

namespace katt::testing {

/// How far the elements of one output may be from their float64 values, the rule of all operators:
///
///   |out − exact| ≤ 2·max|unfused − exact| + 2·max(|round(exact) − exact| + 2·2^−23·|exact|)
///
/// `unfused` is what an unfused implementation in the dtype makes of an element, rounding wherever
/// it stores; round() is to the output's dtype. So it is the rule of FlashAttention-3's tests
/// (arXiv:2407.08608), but for their second term, 2·max|round(round(exact + 0.3) − 0.3) − exact|,
/// whose offset would hide the errors of outputs that are much smaller than 0.3. In its place stand
/// four roundings of f32 at the scale of the output, in which every kernel computes: where little
/// is summed up, the unfused values are exact by chance.
class ErrorRule {
 public:
  explicit ErrorRule(Dtype dtype) : dtype_(dtype) {}

  void add(double exact, double unfused) {
    const double rounded = round_to(dtype_, static_cast<float>(exact));
    unfused_ = std::max(unfused_, std::abs(unfused - exact));
    rounding_ = std::max(rounding_, std::abs(rounded - exact) + 2 * 0x1p-23 * std::abs(exact));
    scale_ = std::max(scale_, std::abs(exact));
  }

  /// The limit. Attention's gradients have 3 for `factor` where heads are grouped or scores capped,
  /// as in FlashAttention-3's tests.
  [[nodiscard]] double limit(double factor = 2) const { return factor * unfused_ + 2 * rounding_; }
  /// max|exact|
  [[nodiscard]] double scale() const { return scale_; }

 private:
  Dtype dtype_;
  double unfused_ = 0;
  double rounding_ = 0;
  double scale_ = 0;
};

/// One element of an output: its float64 value, and what an unfused implementation makes of it.
struct ExpectedValue {
  std::int64_t index = 0;  ///< row-major
  double exact = 0;
  double unfused = 0;
};

/// The rule's limit for these elements of one output.
inline double error_limit(std::span<const ExpectedValue> values, Dtype dtype) {
  ErrorRule rule(dtype);
  for (const ExpectedValue& value : values) rule.add(value.exact, value.unfused);
  return rule.limit();
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
