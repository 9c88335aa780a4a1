#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/execution.hpp"
#include "core/tensor.hpp"
#include "ops/linear/gemm/gemm.hpp"

/// Products by the BLAS library (KokkosBlas::gemm: OpenBLAS on a host, cuBLAS on a device where it
/// is built in), which takes f32 matrices only: other operands are widened panel by panel.
namespace katt::linear::impl {

/// Largest extents of what is widened at one time.
struct Panels {
  std::int64_t m = 1024;
  std::int64_t n = 1024;
  std::int64_t k = 4096;
};

/// Panels that hold any matrix: the operands are widened as a whole.
inline constexpr Panels whole_tensors{INT64_MAX / 2, INT64_MAX / 2, INT64_MAX / 2};

template <class Exec>
std::size_t library_gemm_workspace_bytes(const GemmArgs& args, const Panels& panels);

/// gemm() by the library; the bias, where there is one, is added in the pass that rounds a panel of
/// C.
template <class Exec>
void library_gemm(const Exec& exec, const GemmArgs& args, const Panels& panels, Workspace workspace,
                  const char* label);

/// True when the library can compute the product with its operands as they lie, without a pass before or after.
[[nodiscard]] bool library_takes(const GemmArgs& args);

/// `count` products that it takes, each on one thread.
void library_gemm_batch(const Host& exec, std::int64_t count,
                        const std::function<GemmArgs(std::int64_t)>& product, const char* label);

}  // namespace katt::linear::impl
