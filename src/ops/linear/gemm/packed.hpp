#pragma once

#include <cstddef>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// Products on the vectors of a host: the threads share out blocks of C and pack the panels of A and B
/// that a block needs (gemm/micro.hpp). 16-bit operands are widened.
namespace katt::linear::impl {

template <class Exec>
std::size_t packed_workspace_bytes(const Exec& exec, const GemmArgs& args);

template <class Exec>
void packed_product(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label);

}  // namespace katt::linear::impl
