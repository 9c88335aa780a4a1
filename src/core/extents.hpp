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

}  // namespace katt
