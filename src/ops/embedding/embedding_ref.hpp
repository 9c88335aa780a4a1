#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.hpp"

/// Float64 reference of the embedding's gradient on the host; the forward pass copies and needs
/// none.
namespace katt::embedding {

/// Row `id` of dweight: the sum of dout (tokens, hidden) over the tokens with that id.
[[nodiscard]] std::vector<double> reference_dweight(std::span<const float> dout,
                                                    std::span<const std::int64_t> ids,
                                                    std::int64_t hidden, std::int64_t id);

/// The same with sums in f32, rounded to the dtype at the end.
[[nodiscard]] std::vector<double> unfused_dweight(std::span<const float> dout,
                                                  std::span<const std::int64_t> ids,
                                                  std::int64_t hidden, std::int64_t id,
                                                  Dtype dtype);

}  // namespace katt::embedding
