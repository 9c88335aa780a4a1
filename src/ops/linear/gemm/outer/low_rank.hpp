#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear/gemm/gemm.hpp"
#include "ops/linear/gemm/outer/units.hpp"

/// C = Aᵀ · B with a short sum, as in dweight = doutᵀ · x of a few tokens: the memory of C is the limit.
/// Rows of C are written in runs, past the caches where C is large and not read; B is packed once. An
/// element is one chain over k.
namespace katt::linear::impl {

/// Longest sum of these products.
inline constexpr std::int64_t most_low_rank = 64;

/// True when the product is one of low rank.
[[nodiscard]] bool is_low_rank(const GemmArgs& args);

template <class Exec>
std::size_t low_rank_workspace_bytes(const GemmArgs& args, SkinnyUnit unit);

template <class Exec>
void low_rank(const Exec& exec, const GemmArgs& args, SkinnyUnit unit, Workspace workspace,
              const char* label);

}  // namespace katt::linear::impl
