#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"

namespace katt::testing {

/// A hash of (seed, index): splitmix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom
/// number generators"). The same on every machine and in any order of evaluation.
constexpr std::uint64_t hash(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0xD1342543DE82EF95ULL + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/// Uniform in [0, 1).
constexpr double uniform(std::uint64_t seed, std::uint64_t index) {
  return static_cast<double>(hash(seed, index) >> 11) * 0x1p-53;
}

/// Fills with values of mean 0 and variance scale², rounded to the dtype: the sum of four 16-bit
/// uniforms (Irwin–Hall), close to normal and bounded by 3.47 · scale.
inline void fill(std::span<float> values, std::uint64_t seed, Dtype dtype, float scale = 1.0F) {
  const float step = scale * 1.7320508F / 65536.0F;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = hash(seed, i);
    const auto sum = static_cast<float>((bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) +
                                        ((bits >> 32) & 0xFFFF) + (bits >> 48));
    values[i] = round_to(dtype, (sum - 131070.0F) * step);
  }
}

}  // namespace katt::testing
