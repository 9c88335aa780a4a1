#pragma once

#include <cstddef>

#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"

namespace katt::attention {

/// Memory of one pass of attention before anything is allocated, in bytes. The tracker's
/// measurement (memory/tracker.hpp) is within 5 % of it.
struct MemoryEstimate {
  std::size_t inputs = 0;     ///< read: tensors, bias, key lengths, block mask
  std::size_t outputs = 0;    ///< written
  std::size_t workspace = 0;  ///< of the variant and tile
  std::size_t total() const { return inputs + outputs + workspace; }
};

/// From shapes, strides and dtypes alone; pointers are not read, except that a null kv_len or
/// block_mask counts as absent. The workspace of a host variant grows with the threads of `exec`.
/// Throws InputError for an unknown variant; a variant that is refused has a workspace of 0.
template <class Exec>
[[nodiscard]] MemoryEstimate estimate_memory(const Exec& exec, const ForwardArgs& args,
                                             const Config& config);
template <class Exec>
[[nodiscard]] MemoryEstimate estimate_memory(const Exec& exec, const BackwardArgs& args,
                                             const Config& config);

}  // namespace katt::attention
