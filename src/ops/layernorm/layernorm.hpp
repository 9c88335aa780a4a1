#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// Layer normalisation (Ba, Kiros & Hinton 2016, arXiv:1607.06450, eq. 3 and 4) of every row:
///
///   mean = mean_j x(j),  rstd = 1 / √(mean_j (x(j) − mean)² + eps),  x̂ = (x − mean) · rstd
///   out  = x̂ · weight + bias
///
/// and with g = dout · weight
///
///   dx         = rstd · (g − mean_j g(j) − x̂ · mean_j(g(j) · x̂(j)))
///   dweight(j) = Σ_rows dout(j) · x̂(j),  dbias(j) = Σ_rows dout(j)
///
/// The backward pass computes the statistics again from x, in f32. They do not overflow, however large
/// a row is.
namespace katt::layernorm {

/// Arguments, in the memory of the backend and of one dtype; rows may be any distance apart.
struct ForwardArgs {
  ConstTensorRef<2> x;       ///< (tokens, hidden)
  ConstTensorRef<1> weight;  ///< (hidden)
  ConstTensorRef<1> bias;    ///< (hidden)
  TensorRef<2> out;          ///< (tokens, hidden); may be the memory of x
  float eps = 1e-5F;         ///< added to the variance
};

/// Arguments of the backward pass; memory, dtype and rows as in ForwardArgs.
struct BackwardArgs {
  ConstTensorRef<2> x;       ///< (tokens, hidden)
  ConstTensorRef<1> weight;  ///< (hidden)
  ConstTensorRef<2> dout;    ///< (tokens, hidden)
  TensorRef<2> dx;           ///< (tokens, hidden); may be the memory of x or dout
  TensorRef<1> dweight;      ///< (hidden)
  TensorRef<1> dbias;        ///< (hidden)
  float eps = 1e-5F;         ///< added to the variance
};

/// The variants of an execution space: "naive" and "fused" (rows stay in cache).
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same for the backward pass.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants();

/// Throws InputError when the shapes, dtypes or eps of the arguments do not fit together.
void check(const ForwardArgs& args);
/// The same for the backward pass.
void check(const BackwardArgs& args);

/// Launches the pass on the instance and does not wait. The bits do not depend on the number of
/// threads. Throws like check(), and for an unknown variant or too small a workspace.
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace);
/// The same for the backward pass.
template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace);

/// Operations: 8 an element forward (mean 1, variance 3, x̂ 2, weight and bias 2), 16 backward.
[[nodiscard]] double forward_flops(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_flops(const BackwardArgs& args);

/// Least traffic in bytes: every input read once, every output written once.
[[nodiscard]] double forward_bytes(const ForwardArgs& args);
/// The same for the backward pass.
[[nodiscard]] double backward_bytes(const BackwardArgs& args);

}  // namespace katt::layernorm
