#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.hpp"
#include "core/tensor.hpp"

namespace katt::linear {

/// A dense product with its epilogue, on row-major matrices of any mix of dtypes:
///
///   C = alpha · op(A) · op(B) + beta · C + bias        op(X) = X or Xᵀ
///
/// or, with a gate (on a host), a gated linear unit (SwiGLU; Shazeer 2020, arXiv:2002.05202, eq. 5),
/// whose two products are not stored, but rounded to the dtype of C as if they were:
///
///   C = silu(alpha · A · gateᵀ) · (alpha · A · Bᵀ)
///
/// Matrices lie in the memory of the backend, their rows are contiguous and may be any distance
/// apart. C does not overlap the others.
struct GemmArgs {
  ConstTensorRef<2> a;  ///< (m, k); with trans_a (k, m)
  ConstTensorRef<2> b;  ///< (k, n); with trans_b (n, k)
  TensorRef<2> c;       ///< (m, n)
  bool trans_a = false;
  bool trans_b = false;
  float alpha = 1.0F;
  float beta = 0.0F;         ///< 0: C is written without being read
  ConstTensorRef<1> bias{};  ///< (n), added to every row of C; optional
  /// (n, k), rows as far apart as those of B; optional. Then trans_b alone is set, and there is
  /// neither beta nor bias.
  ConstTensorRef<2> gate{};

  bool is_gated() const { return gate.size() > 0; }
  std::int64_t m() const { return c.extent[0]; }
  std::int64_t n() const { return c.extent[1]; }
  std::int64_t k() const { return a.extent[trans_a ? 0 : 1]; }
};

/// What computes a product.
enum class GemmEngine : std::uint8_t {
  fastest,      ///< of the others, for this product
  widened,      ///< vectors of the build, or the library of a device; 16-bit operands are widened
  amx,          ///< AMX tiles of a CPU: two bf16 operands
  avx512_bf16,  ///< dot products of a CPU: two bf16 operands
  cublaslt,     ///< of a CUDA device: tensor cores in 16 bits
};

/// The one that is meant by `fastest`. Reads shapes and dtypes only.
template <class Exec>
[[nodiscard]] GemmEngine fastest_engine(const GemmArgs& args);

/// ok, or skipped with the reason why the engine cannot compute this product here. Reads shapes
/// and dtypes only.
template <class Exec>
[[nodiscard]] Status gemm_supports(const GemmArgs& args, GemmEngine engine);

/// Bytes of workspace that gemm() needs. Reads shapes, strides and dtypes only, so pointers may be
/// null. Throws InputError where the shapes do not fit together.
template <class Exec>
[[nodiscard]] std::size_t gemm_workspace_bytes(const Exec& exec, const GemmArgs& args,
                                               GemmEngine engine = GemmEngine::fastest);

/// Which units of the machine gemm() uses for this product: "amx", "avx512_bf16", the vectors of
/// the build ("avx512", "avx2", "neon", "scalar"), or on a device "cublaslt" or "blas".
template <class Exec>
[[nodiscard]] std::string gemm_engine(const Exec& exec, const GemmArgs& args,
                                      GemmEngine engine = GemmEngine::fastest);

/// Launches the product under the given label and returns without waiting for it. Products and sums
/// are f32 whatever the dtypes; an f16 or bf16 C is rounded once, from
/// alpha · op(A) · op(B) + beta · C + bias in f32. The bits of C depend on the shapes and dtypes, not
/// on the number of threads.
///
/// The fastest engine on a host: for products of two bf16 matrices AMX tiles or else dot products,
/// where this process may use them; for others vectors, for which a 16-bit operand is widened block
/// by block. Few rows of A against rows of B are inner products (gemm/inner/products.hpp), in bf16 by dot
/// products. On a device it is cuBLASLt where A and B
/// have one dtype, C has that or f32 and the bias C's; else the library's product of f32 over
/// panels. Throws InputError where the shapes do not fit together, the engine cannot compute the
/// product, or the workspace is too small.
template <class Exec>
void gemm(const Exec& exec, const GemmArgs& args, Workspace workspace,
          const char* label = "katt::linear::gemm", GemmEngine engine = GemmEngine::fastest);

}  // namespace katt::linear
