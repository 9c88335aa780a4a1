#pragma once

#include <cstddef>

#include "core/execution.hpp"
#include "core/status.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// Products of many rows into f32 on a host, one factor packed once for all threads, the other by
/// each thread for its piece of C, where the blocks of packed.cpp pack both for every block. The sums
/// are the same chains of fused multiply-adds. So are gated products, of any dtype: panels of B then hold
/// as many columns of the gate as of B.
///
///   few rows to many columns:  A is shared, B = weights; a thread packs some columns of B, which stay
///                              in the second-level cache while all of A streams past
///   else:                      B is shared; a thread packs a panel of A
///
/// The shared factor is packed a chunk of its k at a time, 8 MiB at most; A of a gated product by rows, about 16 MiB.
namespace katt::linear::impl {

/// True when the product has the rows for it, or a gate.
[[nodiscard]] bool is_shared(const GemmArgs& args);

template <class Exec>
std::size_t shared_workspace_bytes(const Exec& exec, const GemmArgs& args);
template <class Exec>
void shared_product(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label);

}  // namespace katt::linear::impl
