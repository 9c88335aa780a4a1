#pragma once

#include "core/dtype.hpp"

/// Float64 reference of the SwiGLU activation on the host, one element at a time. Shares no code
/// with the kernels.
namespace katt::swiglu {

/// out, dgate and dup of one element; the gradients are those for dout.
struct ReferenceElement {
  double out = 0, dgate = 0, dup = 0;
};

/// By the definition, in float64.
[[nodiscard]] ReferenceElement reference_element(double gate, double up, double dout);

/// The same as an unfused implementation in `dtype` computes it: every operation in f32, its result
/// rounded to the dtype.
[[nodiscard]] ReferenceElement unfused_element(float gate, float up, float dout, Dtype dtype);

}  // namespace katt::swiglu
