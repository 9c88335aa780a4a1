#pragma once

#include <span>

#include "core/dtype.hpp"

namespace katt {

/// Converts a run of host elements: out[i] = in[i], rounded to nearest even, overflow to infinity,
/// infinities and NaN kept: bit for bit what the scalar conversions of f16 and bf16 give. `in` and
/// `out` do not overlap. Throws std::invalid_argument when their lengths differ.
void convert(std::span<const float> in, std::span<float> out);
void convert(std::span<const float> in, std::span<f16> out);
void convert(std::span<const float> in, std::span<bf16> out);
void convert(std::span<const f16> in, std::span<float> out);
void convert(std::span<const bf16> in, std::span<float> out);

}  // namespace katt
