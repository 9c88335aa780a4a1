#include "op/new_values.hpp"

#include <algorithm>

namespace katt::bench {

ChangingRows rows_to_change(std::mt19937_64& draw, std::int64_t rows, std::int64_t row,
                            std::size_t inputs, bool all) {
  constexpr std::int64_t most = 1 << 18;
  const std::int64_t share = most / static_cast<std::int64_t>(inputs) / row;
  const std::int64_t count = all ? rows : std::clamp<std::int64_t>(share, 1, rows);
  const std::uint64_t places = static_cast<std::uint64_t>(rows - count + 1);
  return {static_cast<std::int64_t>(draw() % places), count};
}

std::vector<InputChange> change_values(std::span<const RandomInput> inputs, std::uint64_t random,
                                       bool all) {
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

}  // namespace katt::bench
