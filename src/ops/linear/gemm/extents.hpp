#pragma once

#include <cstdint>

/// Extents that are cut into blocks.
namespace katt::linear::impl {

constexpr std::int64_t blocks_of(std::int64_t extent, std::int64_t block) {
  return (extent + block - 1) / block;
}
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return blocks_of(value, unit) * unit;
}

}  // namespace katt::linear::impl
