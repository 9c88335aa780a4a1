#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// RMS normalisation (Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4) and the projection after it, as before the
/// attention and the MLP of a LLaMA:
///
///   h      = x + residual, rounded to the dtype (x itself without a residual)
///   rstd   = 1 / √(mean_j h(j)² + eps)
///   y(j)   = h(j) · rstd · norm_weight(j), rounded to the dtype
///   out    = y · weightᵀ
///
/// Backward, for the gradient of `out` alone, with x̂ = h · rstd, dy = dout · weight and g = dy · norm_weight:
///
///   dx              = rstd · (g − x̂ · mean_j(g(j) · x̂(j)))  (+ dresidual_out)
///   dnorm_weight(j) = Σ_rows dy(j) · x̂(j)
///   dweight         = doutᵀ · y
///
/// Statistics, products and sums are f32 whatever the dtype; every output is rounded once, but dx follows from dy
/// rounded to the dtype. Nothing is saved between the passes: the backward pass computes rstd again.
namespace katt::rmsnorm_linear {

/// Arguments of the forward pass. Tensors share one dtype and lie in the memory of the backend;
/// rows are contiguous and may be any distance apart. No output overlaps another tensor.
struct ForwardArgs {
  ConstTensorRef<2> x;            ///< (tokens, hidden)
  ConstTensorRef<1> norm_weight;  ///< (hidden)
  ConstTensorRef<2> weight;       ///< (out_features, hidden)
  ConstTensorRef<2> residual{};   ///< (tokens, hidden), added to x first; optional
  TensorRef<2> residual_out{};    ///< h, (tokens, hidden); with a residual
  TensorRef<2> out;               ///< (tokens, out_features)
  float eps = 1e-5F;              ///< added to the mean of squares

  std::int64_t tokens() const { return x.extent[0]; }             ///< rows
  std::int64_t hidden() const { return x.extent[1]; }             ///< elements of a row
  std::int64_t out_features() const { return weight.extent[0]; }  ///< columns of out
};

/// Arguments of the backward pass.
struct BackwardArgs {
  ConstTensorRef<2> x;            ///< (tokens, hidden): h, that is residual_out where one was added
  ConstTensorRef<1> norm_weight;  ///< (hidden)
  ConstTensorRef<2> weight;       ///< (out_features, hidden)
  ConstTensorRef<2> dout;         ///< (tokens, out_features)
  /// (tokens, hidden), gradient of residual_out, added to dx; optional
  ConstTensorRef<2> dresidual_out{};
  TensorRef<2> dx;            ///< (tokens, hidden): of x, and of the residual
  TensorRef<1> dnorm_weight;  ///< (hidden)
  TensorRef<2> dweight;       ///< (out_features, hidden)
  float eps = 1e-5F;          ///< added to the mean of squares

  std::int64_t tokens() const { return x.extent[0]; }             ///< rows
  std::int64_t hidden() const { return x.extent[1]; }             ///< elements of a row
  std::int64_t out_features() const { return weight.extent[0]; }  ///< columns of out
};

/// The variants of an execution space; the first is "naive". All of them give the same bits.
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same for the backward pass.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes, dtypes or eps of the arguments do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Launches a pass on the execution space instance and returns without waiting for it. Returns
/// skipped with the reason, and launches nothing, when the variant cannot run these arguments.
/// Throws InputError for arguments that check() refuses, an unknown variant, and a workspace smaller
/// than forward_variants<Exec>().workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// FLOPs of the matrix products, 2 · tokens · hidden · out_features each: one forward, two backward;
/// the norm is not counted.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: every input read once, every output written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::rmsnorm_linear
