#pragma once

#include "op/schema.hpp"
#include "ops/softmax/softmax.hpp"

/// The tensors and numbers of the two passes.
namespace katt::softmax {

inline constexpr auto forward_schema =
    op::schema("softmax", op::in("x", &ForwardArgs::x, "tokens vocab").scale(3.0F),
               op::out("out", &ForwardArgs::out, "tokens vocab"));

inline constexpr auto backward_schema =
    op::schema("softmax", op::in("x", &BackwardArgs::x, "tokens vocab").scale(3.0F),
               op::in("dout", &BackwardArgs::dout, "tokens vocab"),
               op::out("dx", &BackwardArgs::dx, "tokens vocab"));

inline constexpr op::Documentation documentation{
    .forward = "out = exp(x − log Σ exp x), along the last axis.",
    .backward = "dx = out ⊙ (dout − Σ dout·out), out computed again from x.",
    .source = ""};

}  // namespace katt::softmax
