#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "op/registry.hpp"

/// How a case gives its inputs other values (Case::change()). Ranks that draw from equal numbers
/// change equal rows in the same way.
namespace katt::bench {

/// An input whose values are independent draws, so that rotated they are as random as before.
struct RandomInput {
  std::string name;         ///< of its change
  std::span<float> values;  ///< row-major
  std::int64_t row = 1;     ///< elements of the last axis
};

/// Rows of one of `inputs` inputs that a change gives other values: all of them, or some, so that the
/// inputs together change about 262,144 elements, which takes about a millisecond.
struct ChangingRows {
  std::int64_t first = 0, count = 0;
};
[[nodiscard]] ChangingRows rows_to_change(std::mt19937_64& draw, std::int64_t rows,
                                          std::int64_t row, std::size_t inputs, bool all);

/// Rotates the values of such rows of every input by a random distance, which `random` says, so that
/// no change repeats. Returns the changed elements of each input, in their order.
[[nodiscard]] std::vector<InputChange> change_values(std::span<const RandomInput> inputs,
                                                     std::uint64_t random, bool all);

}  // namespace katt::bench
