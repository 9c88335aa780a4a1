#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear/gemm/gemm.hpp"
#include "ops/linear/gemm/outer/units.hpp"

/// Few rows of A times a matrix B as it lies, as in dx = dout · weight of a few tokens: B is read once,
/// in runs of its rows, what comes next being asked for beside the products, and the sums stay in the
/// second-level cache. C is cut into chunks of columns and k into slices, by the shape alone; an element
/// is a chain over a slice, and the slices are added in their order, whatever the number of rows.
namespace katt::linear::impl {

/// Most rows of A that are multiplied so.
inline constexpr std::int64_t most_few_rows = 64;

/// True when the product is one of few rows.
[[nodiscard]] bool is_few_rows(const GemmArgs& args);

template <class Exec>
std::size_t few_rows_workspace_bytes(const GemmArgs& args, SkinnyUnit unit);

template <class Exec>
void few_rows(const Exec& exec, const GemmArgs& args, SkinnyUnit unit, Workspace workspace,
              const char* label);

}  // namespace katt::linear::impl
