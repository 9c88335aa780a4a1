#pragma once

#include <cstddef>

#include "core/status.hpp"
#include "core/tensor.hpp"
#include "op/variants.hpp"

/// Conversion of a matrix to another dtype: out = x rounded to nearest, ties to even; overflow
/// gives infinity, infinities stay, NaN stays a NaN (IEEE 754-2019, §4.3.1 and §5.4.2). Every pair
/// of f32, f16 and bf16, the same dtype included (a copy). The gradient is the conversion back.
namespace katt::convert_dtype {

/// Arguments, in the memory of the backend; rows may be any distance apart. x and out do not
/// overlap.
struct ForwardArgs {
  ConstTensorRef<2> x;  ///< (tokens, hidden)
  TensorRef<2> out;     ///< (tokens, hidden), of any dtype
};
using BackwardArgs = ForwardArgs;  ///< x is dout and out is dx

/// The variants of an execution space: "naive" (one element at a time) and "vector".
template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants();
/// The same: the backward pass is the conversion of dout.
template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  return forward_variants<Exec>();
}

/// Throws InputError when the shapes of the arguments differ.
void check(const ForwardArgs& args);

/// Launches the conversion on the execution space instance and returns without waiting for it.
/// Needs no workspace. Throws InputError for arguments that check() refuses and for an unknown
/// variant.
template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config);

/// Least traffic in bytes: x read once, out written once.
[[nodiscard]] double bytes(const ForwardArgs& args);

}  // namespace katt::convert_dtype
