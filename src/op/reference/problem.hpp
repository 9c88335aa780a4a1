#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"

namespace katt::testing {

/// Host values by the tensor's name, row-major, already rounded to the dtype under test.
using HostValues = std::map<std::string, std::vector<float>, std::less<>>;

/// A problem of an operator on the host, by names: what a pass reads, and what its reference reads.
struct Problem {
  Dtype dtype = Dtype::f32;
  bool backward = false;
  /// Integer axes, and axes of choices by the index of the choice.
  std::map<std::string, std::int64_t, std::less<>> extents;
  /// Real axes, and parameters that are no axis, e.g. eps.
  std::map<std::string, double, std::less<>> parameters;
  HostValues values;
  std::map<std::string, std::vector<std::int64_t>, std::less<>> integers;

  /// The extent of an axis; 0 for one that is not there.
  [[nodiscard]] std::int64_t extent(std::string_view axis) const {
    const auto found = extents.find(axis);
    return found == extents.end() ? 0 : found->second;
  }
  [[nodiscard]] double parameter(std::string_view name) const {
    return parameters.find(name)->second;
  }
  [[nodiscard]] bool has(std::string_view tensor) const {
    return values.contains(tensor) || integers.contains(tensor);
  }
  /// The values of a tensor; none for one that is not there.
  [[nodiscard]] std::span<const float> floats(std::string_view tensor) const {
    const auto found = values.find(tensor);
    return found == values.end() ? std::span<const float>{} : std::span<const float>(found->second);
  }
  [[nodiscard]] std::span<const std::int64_t> indices(std::string_view tensor) const {
    const auto found = integers.find(tensor);
    return found == integers.end() ? std::span<const std::int64_t>{}
                                   : std::span<const std::int64_t>(found->second);
  }
  /// Row `row` of a tensor whose last axis has so many elements; none of one that is not there.
  [[nodiscard]] std::span<const float> row(std::string_view tensor, std::int64_t columns,
                                           std::int64_t row) const {
    const auto all = floats(tensor);
    return all.empty() ? all
                       : all.subspan(static_cast<std::size_t>(row * columns),
                                     static_cast<std::size_t>(columns));
  }
};

}  // namespace katt::testing
