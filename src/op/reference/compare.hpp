#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <string>

#include "core/status.hpp"

namespace katt::testing {

/// Agreement of an output with the float64 reference, over the rows that were checked.
struct Errors {
  double max_abs = 0;
  double mean_abs = 0;
  /// ok, or failed with the first places that differ and the limit they broke.
  Status status;
};

/// Gathers the differences between an output and its float64 reference, and reports the first
/// places that break their limit. Infinities must agree in place and sign; NaN never agrees.
class Comparison {
 public:
  /// One value at an index of the output `name`.
  void add(const char* name, std::span<const std::int64_t> index, double got, double expected,
           double limit) {
    ++count_;
    if (std::isinf(expected) || std::isinf(got)) {
      if (got != expected) note(name, index, got, expected, limit);
      return;
    }
    const double error = std::abs(got - expected);
    if (!(error <= limit)) note(name, index, got, expected, limit);
    if (!(error <= max_) && !std::isnan(max_)) max_ = error;  // NaN stays
    sum_ += error;
  }

  void add(const char* name, std::initializer_list<std::int64_t> index, double got, double expected,
           double limit) {
    add(name, std::span(index.begin(), index.size()), got, expected, limit);
  }

  [[nodiscard]] Errors result() const {
    Errors errors;
    errors.max_abs = max_;
    errors.mean_abs = count_ == 0 ? 0 : sum_ / static_cast<double>(count_);
    if (broken_ > 0) {
      errors.status = Status::failed(std::to_string(broken_) + " of " + std::to_string(count_) +
                                     " checked values differ: " + first_);
    }
    return errors;
  }

 private:
  void note(const char* name, std::span<const std::int64_t> index, double got, double expected,
            double limit) {
    if (++broken_ > 3) return;
    std::string at;
    for (const std::int64_t i : index) at += (at.empty() ? "" : ", ") + std::to_string(i);
    char values[96];
    std::snprintf(values, sizeof values, ") is %.9g, expected %.9g within %.3g", got, expected,
                  limit);
    first_ += (first_.empty() ? "" : "; ") + std::string(name) + "(" + at + values;
  }

  double max_ = 0;
  double sum_ = 0;
  std::int64_t count_ = 0;
  std::int64_t broken_ = 0;
  std::string first_;
};

}  // namespace katt::testing
