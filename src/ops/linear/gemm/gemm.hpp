#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/status.hpp"
#include "core/tensor.hpp"

namespace katt::linear {

/// Scales of the elements of a matrix, multiplied where an engine packs it, so that the scaled matrix is not
/// stored. Element (r, c) is
///
///   x(r, c) · rows(r, 0) · rows(r, 1) · columns(c)
///
/// in f32, from left to right, rounded to the dtype of the matrix as if it were stored. A row has two scales,
/// since f32 does not hold the product of every two: 1 / √(mean of squares) of a row of subnormal numbers.
struct ElementScales {
  ConstTensorRef<2> rows{};     ///< (rows of the matrix, 2), f32, dense
  ConstTensorRef<1> columns{};  ///< (columns of the matrix), in its dtype

  bool are_there() const { return columns.size() > 0; }  ///< false: the matrix as it is
};

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
  ConstTensorRef<2> a;       ///< (m, k); with trans_a (k, m)
  ConstTensorRef<2> b;       ///< (k, n); with trans_b (n, k)
  TensorRef<2> c;            ///< (m, n)
  bool trans_a = false;      ///< op(A) = Aᵀ
  bool trans_b = false;      ///< op(B) = Bᵀ
  float alpha = 1.0F;        ///< factor of the product
  float beta = 0.0F;         ///< 0: C is written without being read
  ConstTensorRef<1> bias{};  ///< (n), added to every row of C; optional
  /// (n, k), rows as far apart as those of B; optional. Then trans_b alone is set, and there is
  /// neither beta nor bias.
  ConstTensorRef<2> gate{};
  /// Scales of A and of B; optional. B has none with a gate. Some engines on a host take them.
  ElementScales a_scales{}, b_scales{};

  bool is_gated() const { return gate.size() > 0; }  ///< true: a gated linear unit
  /// True when a factor has scales of its elements.
  bool has_scales() const { return a_scales.are_there() || b_scales.are_there(); }
  std::int64_t m() const { return c.extent[0]; }  ///< rows of C
  std::int64_t n() const { return c.extent[1]; }  ///< columns of C
  /// Length of the sums.
  std::int64_t k() const { return a.extent[trans_a ? 0 : 1]; }
};

/// A way to compute products, on one unit of the machine. The variants of linear are made of these.
template <class Exec>
struct GemmEngine {
  const char* name;         ///< as `katt info linear` prints it
  const char* description;  ///< what it does, in a line
  /// "amx", "avx512_bf16", the vectors of the build ("avx512", …), "blas",
  /// "cublaslt" or "cuda_cores".
  const char* unit;
  const char* taken;               ///< the products that takes() accepts, in words
  bool (*takes)(const GemmArgs&);  ///< reads shapes and dtypes only
  /// gemm() runs the engine of the highest rank that takes the product and whose unit is there.
  int (*rank)(const GemmArgs&);
  /// Bytes of workspace that launch() needs.
  std::size_t (*workspace_bytes)(const Exec&, const GemmArgs&);
  /// Launches the product under the label; does not wait.
  void (*launch)(const Exec&, const GemmArgs&, Workspace, const char* label);
  /// Why this process cannot use the unit, "" where it can; left out, it always can.
  std::string (*unit_refusal)() = nullptr;
  /// Takes products of linear's forward pass alone.
  bool forward_only = false;
};

/// The engines of an execution space.
template <class Exec>
[[nodiscard]] std::span<const GemmEngine<Exec>> gemm_engines();

/// The engine of a unit, by default of any, that gemm() chooses for a product; where none of them can compute it,
/// the first. Reads shapes and dtypes only.
template <class Exec>
[[nodiscard]] const GemmEngine<Exec>& fastest_engine(const GemmArgs& args,
                                                     std::string_view unit = {});

/// ok, or skipped with the reason why the engine cannot compute this product here. Reads shapes
/// and dtypes only.
template <class Exec>
[[nodiscard]] Status gemm_supports(const GemmEngine<Exec>& engine, const GemmArgs& args);

/// Bytes of workspace that gemm() needs, on the engine that it chooses or on this one. Reads shapes, strides and
/// dtypes only, so pointers may be null. Throws InputError where the shapes do not fit together.
template <class Exec>
[[nodiscard]] std::size_t gemm_workspace_bytes(const Exec& exec, const GemmArgs& args,
                                               const GemmEngine<Exec>* engine = nullptr);

/// Launches the product under the given label and returns without waiting for it. Products and sums
/// are f32 whatever the dtypes; an f16 or bf16 C is rounded once, from
/// alpha · op(A) · op(B) + beta · C + bias in f32. The bits of C depend on the shapes and dtypes, not
/// on the number of threads, but for engines on "blas".
///
/// Throws InputError where the shapes do not fit together, the engine cannot compute the product, or the
/// workspace is too small.
template <class Exec>
void gemm(const Exec& exec, const GemmArgs& args, Workspace workspace,
          const char* label = "katt::linear::gemm", const GemmEngine<Exec>* engine = nullptr);

}  // namespace katt::linear
