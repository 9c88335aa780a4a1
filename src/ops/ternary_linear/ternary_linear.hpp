#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"
#include "ops/ternary_linear/ternary_linear_pack.hpp"

/// A linear layer with ternary weights and 8-bit activations (BitNet b1.58, Ma et al. 2024,
/// arXiv:2402.17764). With W_q and s_w as pack() makes them, and for every token
///
///   s_x = 127 / max(max |x|, 1e-5),  x_q = clamp(round(x · s_x), −128, 127), half to even, in f64
///   out = (x_q · W_qᵀ) · s_w / s_x
///
/// Backward through the straight-through estimator (Bengio et al. 2013, arXiv:1308.3432), which
/// takes the derivative of both roundings as 1:
///
///   dx = dout · W_q · s_w,   dweight = doutᵀ · x_q / s_x
namespace katt::ternary_linear {

/// Largest in_features: the 32-bit sums of the kernels hold that many products.
inline constexpr std::int64_t max_in_features = 1 << 17;

/// Arguments of the forward pass, in the memory of the backend; x and out share a dtype and their
/// rows may be any distance apart. A variant reads either form of the weight and ignores the other.
struct ForwardArgs {
  ConstTensorRef<2> x;        ///< (tokens, in_features)
  PackedTernary packed{};     ///< for the packed variants, in the variant's format
  ConstTensorRef<2> dense{};  ///< W_q · s_w in the dtype of x (dequantise()), for "naive"
  TensorRef<2> out;           ///< (tokens, out_features)

  std::int64_t tokens() const { return x.extent[0]; }          ///< rows
  std::int64_t in_features() const { return x.extent[1]; }     ///< columns of x
  std::int64_t out_features() const { return out.extent[1]; }  ///< columns of out
};

/// Arguments of the backward pass. x is read before anything is written, so that dx may be the
/// memory of x.
struct BackwardArgs {
  ConstTensorRef<2> x;        ///< (tokens, in_features)
  ConstTensorRef<2> dout;     ///< (tokens, out_features)
  PackedTernary packed{};     ///< as forward
  ConstTensorRef<2> dense{};  ///< as forward
  TensorRef<2> dx;            ///< (tokens, in_features)
  TensorRef<2> dweight;       ///< (out_features, in_features); f32 where it is added to
  bool adds_dweight = false;  ///< dweight += its gradient; not "naive"

  std::int64_t tokens() const { return x.extent[0]; }           ///< rows
  std::int64_t in_features() const { return x.extent[1]; }      ///< columns of x
  std::int64_t out_features() const { return dout.extent[1]; }  ///< columns of out
};

/// The variants of an execution space: "naive" (dequantised weights in the dtype), "packed2" and
/// "packed5" (kernels on PackFormat::two_bit and five_per_byte).
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same for the backward pass.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes or dtypes of the arguments do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Launches the pass on the execution space instance and returns without waiting for it. Returns
/// skipped with the reason when the arguments lack the form of the weight that the variant reads.
/// The bits of the result do not depend on the number of threads. Throws InputError for arguments
/// that check() refuses, an unknown variant, and a workspace smaller than the table's
/// workspace_bytes().
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// Operations: 2 · tokens · in_features · out_features forward, twice that backward.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: x (and dout) and the weights at five a byte read once, the results
/// written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::ternary_linear
