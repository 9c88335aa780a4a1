#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

/// How a case gives its inputs other values (bench::Case::change()). Ranks that draw from equal
/// numbers change equal rows in the same way.
namespace katt::testing {

/// An input whose values are independent draws, so that rotated they are as random as before.
struct RandomInput {
  std::string name;         ///< of its change
  std::span<float> values;  ///< row-major
  std::int64_t row = 1;     ///< elements of the last axis
};

/// Elements of an input, in logical order, that have changed; `name` as other programs know it.
struct InputChange {
  std::string name;
  std::size_t first = 0;
  std::size_t count = 0;
};

struct ChangingRows {
  std::int64_t first = 0, count = 0;
};

/// Rows of one of `inputs` inputs that a change gives other values: all of them, or some, so that the
/// inputs together change about 262,144 elements, which takes about a millisecond.
inline ChangingRows rows_to_change(std::mt19937_64& draw, std::int64_t rows, std::int64_t row,
                                   std::size_t inputs, bool all) {
  constexpr std::int64_t most = 1 << 18;
  const std::int64_t share = most / static_cast<std::int64_t>(inputs) / row;
  const std::int64_t count = all ? rows : std::clamp<std::int64_t>(share, 1, rows);
  const auto places = static_cast<std::uint64_t>(rows - count + 1);
  return {static_cast<std::int64_t>(draw() % places), count};
}

/// Rotates the values of such rows of every input by a random distance, which `random` says, so that
/// no change repeats. Returns the changed elements of each input, in their order.
[[nodiscard]] inline std::vector<InputChange> change_values(std::span<const RandomInput> inputs,
                                                            std::uint64_t random, bool all) {
  std::mt19937_64 draw(random);
  std::vector<InputChange> changes;
  for (const RandomInput& input : inputs) {
    const std::int64_t size = std::ssize(input.values);
    const auto [first, count] =
        rows_to_change(draw, size / input.row, input.row, inputs.size(), all);
    const auto begin = input.values.begin() + first * input.row;
    const std::int64_t changed = count * input.row;
    const auto turn =
        1 + draw() % static_cast<std::uint64_t>(std::max<std::int64_t>(1, changed - 1));
    std::rotate(begin, begin + static_cast<std::int64_t>(turn), begin + changed);
    changes.push_back({.name = input.name,
                       .first = static_cast<std::size_t>(first * input.row),
                       .count = static_cast<std::size_t>(changed)});
  }
  return changes;
}

}  // namespace katt::testing
