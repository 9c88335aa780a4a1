#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.hpp"
#include "ops/rope/rope.hpp"

/// Float64 reference of the rotary embedding on the host, row by row. Shares no code with the
/// kernels, nor their frequencies.
namespace katt::rope {

/// A problem in host memory: dense row-major float32 values already rounded to the dtype under
/// test.
struct HostProblem {
  std::int64_t batch = 0, heads = 0, seq = 0, head_dim = 0;
  std::span<const float> x;  ///< (batch, heads, seq, head_dim); dout in the backward pass
  std::span<const std::int64_t> positions;  ///< (batch, seq), or empty: 0 … seq − 1
  FrequencyArgs frequencies;                ///< its precision is taken as f64
  bool interleaved = false;
  bool backward = false;  ///< turn by the negative angle
};

/// One row: a position of a head of a batch entry.
struct RowIndex {
  std::int64_t batch = 0, head = 0, seq = 0;
  friend auto operator<=>(const RowIndex&, const RowIndex&) = default;
};

/// The turned row (head_dim) in float64, by the definition.
[[nodiscard]] std::vector<double> reference_row(const HostProblem& problem, const RowIndex& index);

/// The same row as an unfused implementation in `dtype` computes it: cosines, sines and both
/// products rounded to the dtype where they are stored.
[[nodiscard]] std::vector<double> unfused_row(const HostProblem& problem, const RowIndex& index,
                                              Dtype dtype);

}  // namespace katt::rope
