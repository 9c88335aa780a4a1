#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// Affine map of every token (torch.nn.Linear):
///
///   out = x · weightᵀ + bias
///   dx = dout · weight,   dweight = doutᵀ · x,   dbias(o) = Σ_t dout(t, o)
///
/// Products and sums are f32 whatever the dtype; every output is rounded to its dtype once.
namespace katt::linear {

/// Arguments of the forward pass. Tensors share one dtype and lie in the memory of the backend;
/// rows are contiguous and may be any distance apart.
struct ForwardArgs {
  ConstTensorRef<2> x;       ///< (tokens, in_features)
  ConstTensorRef<2> weight;  ///< (out_features, in_features)
  ConstTensorRef<1> bias{};  ///< (out_features); optional
  TensorRef<2> out;          ///< (tokens, out_features)

  std::int64_t tokens() const { return x.extent[0]; }             ///< rows
  std::int64_t in_features() const { return x.extent[1]; }        ///< columns of x
  std::int64_t out_features() const { return weight.extent[0]; }  ///< columns of out
};

/// Arguments of the backward pass. A gradient that is left out (extent 0) is not computed.
struct BackwardArgs {
  ConstTensorRef<2> x;       ///< (tokens, in_features)
  ConstTensorRef<2> weight;  ///< (out_features, in_features)
  ConstTensorRef<2> dout;    ///< (tokens, out_features)
  TensorRef<2> dx{};         ///< (tokens, in_features)
  TensorRef<2> dweight{};    ///< (out_features, in_features)
  TensorRef<1> dbias{};      ///< (out_features)

  std::int64_t tokens() const { return x.extent[0]; }             ///< rows
  std::int64_t in_features() const { return x.extent[1]; }        ///< columns of x
  std::int64_t out_features() const { return weight.extent[0]; }  ///< columns of out
};

/// The forward variants of an execution space; the first is "naive".
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();

/// The backward variants of an execution space; the first is "naive".
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when shapes or dtypes do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Launches the forward pass on the execution space instance and returns without waiting for it.
/// Returns skipped with the reason, and launches nothing, when the variant cannot run these
/// arguments. Throws InputError for arguments that check() refuses, an unknown variant, and a
/// workspace smaller than forward_variants<Exec>().workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);

/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// FLOPs of the matrix products: 2 · tokens · in_features · out_features, once forward, once for
/// each of dx and dweight backward; the bias is not counted.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: every input read once, every output written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::linear
