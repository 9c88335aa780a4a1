#pragma once

#include <cstdint>

#include "nn/parameters.hpp"
#include "nn/runner.hpp"

/// Products with weights, and gradients of weights in f32, which are added or, if the runner says
/// so, written. With packed weights these are the products of ternary_linear, and the gradients of
/// its straight-through estimator.
namespace katt::nn {

/// out = x·weightᵀ + bias; the bias may be empty.
template <class Exec>
void project(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& x,
             const Projection& weight, const TensorRef<1>& bias, const TensorRef<2>& out);

/// The gradients of project(): gradients of the weights as by add_linear_gradients(), and dx =
/// dout·weight, which may be the memory of x.
template <class Exec>
void project_backward(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& x,
                      const Projection& weight, const TensorRef<2>& dout, const TensorRef<2>& dx,
                      const TensorRef<2>& dweight, const TensorRef<1>& dbias,
                      const TensorRef<2>& staging);

/// gradient += value, or = value if the runner says so; both of one size; gradient f32. Does
/// nothing for an empty gradient.
template <class Exec>
void add_gradient(Runner<Exec>& run, const void* value, Dtype dtype, void* gradient,
                  std::int64_t count);

/// sum = a + b, in f32 and rounded once; dense, of one dtype and size.
template <class Exec>
void add_rows(const Exec& exec, const TensorRef<2>& a, const TensorRef<2>& b,
              const TensorRef<2>& sum);

/// Fills dense rows with zeros: the rows of StreamRows behind the last token.
template <class Exec>
void clear_rows(const Exec& exec, const TensorRef<2>& rows);

/// Gradients of out = x·weightᵀ + bias: doutᵀ·x to dweight and the column sums of dout to dbias (f32).
template <class Exec>
void add_linear_gradients(Runner<Exec>& run, const Kernels& kernels, const TensorRef<2>& x,
                          const TensorRef<2>& dout, const TensorRef<2>& dweight,
                          const TensorRef<1>& dbias, const TensorRef<2>& staging);

}  // namespace katt::nn
