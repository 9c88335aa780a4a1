#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ops/linear/gemm/skinny.hpp"

/// Few rows of A against rows of B, as in generation: inner products along k, in vectors, of B where
/// it lies. B is read once, in the order of memory, what comes next being asked for beside the
/// products; A is packed. An element of C is one chain of sums over k in each lane and then a tree
/// over the lanes, whatever the number of rows, so that a row has the same bits alone and among others.
namespace katt::linear::impl {

/// Most rows of A that are multiplied so.
inline constexpr std::int64_t most_inner_rows = 64;

/// True when the product can be made of inner products.
[[nodiscard]] bool is_inner(const GemmArgs& args);

template <class Exec>
std::size_t inner_workspace_bytes(const Exec& exec, const GemmArgs& args, SkinnyUnit unit);

template <class Exec>
void inner_products(const Exec& exec, const GemmArgs& args, SkinnyUnit unit, Workspace workspace,
                    const char* label);

}  // namespace katt::linear::impl
