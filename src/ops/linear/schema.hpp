#pragma once

#include "op/schema.hpp"
#include "ops/linear/linear.hpp"

/// The tensors and numbers of the two passes.
namespace katt::linear {

inline constexpr auto forward_schema =
    op::schema("linear", op::in("x", &ForwardArgs::x, "tokens in_features"),
               op::in("weight", &ForwardArgs::weight, "out_features in_features").scale(0.03125F),
               op::in("bias", &ForwardArgs::bias, "out_features").when("bias"),
               op::out("out", &ForwardArgs::out, "tokens out_features"));

/// The backward pass computes the gradients that have memory.
inline constexpr auto backward_schema =
    op::schema("linear", op::in("x", &BackwardArgs::x, "tokens in_features"),
               op::in("weight", &BackwardArgs::weight, "out_features in_features").scale(0.03125F),
               op::in("bias", "out_features").when("bias"),
               op::in("dout", &BackwardArgs::dout, "tokens out_features"),
               op::out("dx", &BackwardArgs::dx, "tokens in_features").optional(),
               op::out("dweight", &BackwardArgs::dweight, "out_features in_features").optional(),
               op::out("dbias", &BackwardArgs::dbias, "out_features").when("bias"));

inline constexpr op::Documentation documentation{
    .forward = "out = x · weightᵀ + bias. Sums are float32.",
    .backward =
        "dx = dout · weight, dweight = doutᵀ · x, and where bias is true dbias = Σ dout over the "
        "tokens.",
    .source = ""};

}  // namespace katt::linear
