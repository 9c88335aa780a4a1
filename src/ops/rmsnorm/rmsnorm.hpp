#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// Root mean square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4) of every row,
/// with what usually stands before and after it:
///
///   h      = x + residual, rounded to the dtype (x itself without a residual)
///   rstd   = 1 / √(mean_j h(j)² + eps)
///   out(j) = h(j) · rstd · weight(j)
///   out_q  = clamp(round(out · s), −128, 127),  s = 127 / max(max_j |out(j)|, 1e-5)
///
/// Statistics are f32 and neither overflow nor vanish, however large or small the row is. Backward,
/// for the gradient of `out` alone, with x̂ = h · rstd and g = dout · weight:
///
///   dx         = rstd · (g − x̂ · mean_j(g(j) · x̂(j)))  (+ dresidual_out)
///   dweight(j) = Σ_rows dout(j) · x̂(j)
namespace katt::rmsnorm {

/// Arguments of the forward pass. Tensors share one dtype, lie in the memory of the backend, and
/// may have any strides as long as the last axis is contiguous. Outputs may be inputs of the same
/// shape (in place), but no output may overlap another.
struct ForwardArgs {
  ConstTensorRef<2> x;           ///< (tokens, hidden)
  ConstTensorRef<1> weight;      ///< (hidden)
  ConstTensorRef<2> residual{};  ///< (tokens, hidden), added to x first; optional
  TensorRef<2> out{};            ///< (tokens, hidden); may be left out where out_q is wanted
  TensorRef<2> residual_out{};   ///< h, (tokens, hidden); with a residual
  std::int8_t* out_q = nullptr;  ///< (tokens, hidden), dense; optional
  float* out_q_scale = nullptr;  ///< s, (tokens); with out_q. out ≈ out_q / s
  float eps = 1e-5F;             ///< added to the mean of squares

  std::int64_t tokens() const { return x.extent[0]; }   ///< rows
  std::int64_t hidden() const { return x.extent[1]; }   ///< elements of a row
  bool adds() const { return residual.extent[1] > 0; }  ///< true with a residual
};

/// Arguments of the backward pass. `dx` may be an input of the same shape.
struct BackwardArgs {
  ConstTensorRef<2> dout;    ///< (tokens, hidden)
  ConstTensorRef<2> x;       ///< (tokens, hidden): h, that is residual_out where one was added
  ConstTensorRef<1> weight;  ///< (hidden)
  ConstTensorRef<2>
      dresidual_out{};   ///< (tokens, hidden), gradient of residual_out, added to dx; optional
  TensorRef<2> dx;       ///< (tokens, hidden): of x, and of the residual
  TensorRef<1> dweight;  ///< (hidden)
  float eps = 1e-5F;     ///< added to the mean of squares

  std::int64_t tokens() const { return x.extent[0]; }  ///< rows
  std::int64_t hidden() const { return x.extent[1]; }  ///< elements of a row
  /// True with the gradient of residual_out.
  bool adds() const { return dresidual_out.extent[1] > 0; }
};

/// The variants of an execution space; the first is "naive". A program adds its own with add().
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same for the backward pass.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes, dtypes or eps of the arguments do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Bytes of workspace that forward() or backward() needs. Throws like them.
template <class Exec>
[[nodiscard]] std::size_t workspace_bytes(const Exec& exec, const ForwardArgs& args,
                                          const Config& config);
/// The same for the backward pass.
template <class Exec>
[[nodiscard]] std::size_t workspace_bytes(const Exec& exec, const BackwardArgs& args,
                                          const Config& config);

/// Launches a pass on the execution space instance and returns without waiting for it. The results
/// are the same bits on every run and with any number of threads. Returns skipped with the reason,
/// and launches nothing, when the variant cannot run here. Throws InputError for arguments that
/// check() refuses, an unknown variant, and a workspace smaller than workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// FLOPs: a few per element, additions and multiplications counted singly.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: every input read once, every output written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::rmsnorm
