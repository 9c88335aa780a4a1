#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// Products of few tokens on a host, of the operands as they lie. Each layout of linear's products has its kernel:
///
///   A · Bᵀ, few rows     out = x · weightᵀ      inner/products.hpp
///   A · B, few rows      dx = dout · weight     outer/few_rows.hpp
///   Aᵀ · B, short sums   dweight = doutᵀ · x    outer/low_rank.hpp
namespace katt::linear::impl {

/// Multiplying unit: f32 vectors, for which 16 bits are widened, or dot products of AVX512-BF16.
enum class SkinnyUnit : std::uint8_t { widened, dots };

/// True when one of the kernels takes the product.
[[nodiscard]] bool is_skinny(const GemmArgs& args);

template <class Exec>
std::size_t skinny_workspace_bytes(const Exec& exec, const GemmArgs& args, SkinnyUnit unit);

template <class Exec>
void skinny_product(const Exec& exec, const GemmArgs& args, SkinnyUnit unit, Workspace workspace,
                    const char* label);

}  // namespace katt::linear::impl
