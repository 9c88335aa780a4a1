#pragma once

#include <cstdint>

/// Extents that are cut into blocks.
namespace katt {

constexpr std::int64_t divide_up(std::int64_t extent, std::int64_t block) {
  return (extent + block - 1) / block;
}
constexpr std::int64_t round_up(std::int64_t extent, std::int64_t unit) {
  return divide_up(extent, unit) * unit;
}

/// Length of the blocks that an extent is cut into, a multiple of `unit`, so that the busiest of
/// `threads` threads has the least work: `least` blocks or, when that saves three hundredths, up to
/// twice as many. Each block occurs `times` times. 0 where the extent is.
constexpr std::int64_t even_block(std::int64_t extent, std::int64_t least, std::int64_t unit,
                                  std::int64_t times, std::int64_t threads) {
  std::int64_t best = 0;
  if (extent == 0) return best;
  double shortest = 0;
  for (std::int64_t count = least; count <= 2 * least; ++count) {
    const std::int64_t block = round_up(divide_up(extent, count), unit);
    const auto time =
        static_cast<double>(divide_up(times * divide_up(extent, block), threads) * block);
    if (count > least && time > 0.97 * shortest) continue;
    shortest = time;
    best = block;
  }
  return best;
}

}  // namespace katt
