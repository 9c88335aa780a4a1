#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "op/reference/compare.hpp"

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

  /// A value that is infinite, or leaves the dtype, says nothing of the others.
  void add(double exact, double unfused) {
    const double rounded = round_to(dtype_, static_cast<float>(exact));
    if (!std::isfinite(rounded) || !std::isfinite(unfused)) return;
    unfused_ = std::max(unfused_, std::abs(unfused - exact));
    rounding_ = std::max(rounding_, std::abs(rounded - exact) + 2 * 0x1p-23 * std::abs(exact));
  }

  /// The limit. Attention's gradients may have 3 for `factor`.
  [[nodiscard]] double limit(double factor = 2) const { return factor * unfused_ + 2 * rounding_; }

 private:
  Dtype dtype_;
  double unfused_ = 0;
  double rounding_ = 0;
};

/// One element of an output: its float64 value, and what an unfused implementation makes of it.
struct ExpectedValue {
  std::int64_t index = 0;  ///< row-major
  double exact = 0;
  double unfused = 0;
};

/// The rule's limit for these elements of one output.
inline double error_limit(std::span<const ExpectedValue> values, Dtype dtype, double factor = 2) {
  ErrorRule rule(dtype);
  for (const ExpectedValue& value : values) rule.add(value.exact, value.unfused);
  return rule.limit(factor);
}

/// Elements of one output that share a limit. An output may have several such parts.
struct ExpectedPart {
  std::string output;
  std::vector<ExpectedValue> values{};
  double factor = 2;      ///< of ErrorRule::limit()
  double slack = 0;       ///< added to the rule's limit
  bool is_exact = false;  ///< there is one right answer: the limit is 0
  /// Decides whether the output passes, and stays out of the errors that are reported.
  bool unreported = false;

  /// Elements `first`, first + step, …
  void add(std::int64_t first, std::span<const double> exact, std::span<const double> unfused,
           std::int64_t step = 1) {
    for (std::size_t i = 0; i < exact.size(); ++i) {
      values.push_back({first + static_cast<std::int64_t>(i) * step, exact[i], unfused[i]});
    }
  }
  [[nodiscard]] double limit(Dtype dtype) const {
    return is_exact ? 0 : error_limit(values, dtype, factor) + slack;
  }
};

/// The value that an output can hold: infinite where a finite one leaves the dtype.
inline double storable(double exact, Dtype dtype) {
  const float rounded = round_to(dtype, static_cast<float>(exact));
  return std::isinf(rounded) ? rounded : exact;
}

/// A sample of every output.
using Expected = std::vector<ExpectedPart>;

/// Adds the elements of a part to a comparison, of an output with these extents.
inline void add_all(Comparison& comparison, const ExpectedPart& part, std::span<const float> got,
                    std::span<const std::int64_t> extents, Dtype dtype) {
  const double limit = part.limit(dtype);
  std::vector<std::int64_t> place(extents.size());
  for (const ExpectedValue& value : part.values) {
    std::int64_t rest = value.index;
    for (std::size_t axis = extents.size(); axis-- > 0;) {
      place[axis] = rest % extents[axis];
      rest /= extents[axis];
    }
    comparison.add(part.output.c_str(), place, got[static_cast<std::size_t>(value.index)],
                   storable(value.exact, dtype), limit);
  }
}

/// The same for elements of a matrix.
inline void add_all(Comparison& comparison, const char* name, std::span<const float> got,
                    std::int64_t columns, std::span<const ExpectedValue> expected, Dtype dtype) {
  const double limit = error_limit(expected, dtype);
  for (const ExpectedValue& value : expected) {
    comparison.add(name, {value.index / columns, value.index % columns},
                   got[static_cast<std::size_t>(value.index)], storable(value.exact, dtype), limit);
  }
}

}  // namespace katt::testing
