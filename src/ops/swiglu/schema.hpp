#pragma once

#include "op/schema.hpp"
#include "ops/swiglu/swiglu.hpp"

/// The tensors and numbers of the two passes.
namespace katt::swiglu {

inline constexpr auto forward_schema = op::schema(
    "swiglu", op::in("gate", &ForwardArgs::gate, "tokens intermediate").letters("(T, F)"),
    op::in("up", &ForwardArgs::up, "tokens intermediate").letters("(T, F)"),
    op::out("out", &ForwardArgs::out, "tokens intermediate").letters("(T, F)"));

inline constexpr auto backward_schema = op::schema(
    "swiglu", op::in("gate", &BackwardArgs::gate, "tokens intermediate").letters("(T, F)"),
    op::in("up", &BackwardArgs::up, "tokens intermediate").letters("(T, F)"),
    op::in("dout", &BackwardArgs::dout, "tokens intermediate").letters("(T, F)"),
    op::out("dgate", &BackwardArgs::dgate, "tokens intermediate").letters("(T, F)"),
    op::out("dup", &BackwardArgs::dup, "tokens intermediate").letters("(T, F)"));

inline constexpr op::Documentation documentation{
    .forward = "out = silu(gate) · up, element by element, silu(g) = g / (1 + e^−g).",
    .backward =
        "dgate = dout · up · σ(gate) · (1 + gate · (1 − σ(gate))), dup = dout · silu(gate), σ(g) = "
        "1 / (1 + e^−g).",
    .source = "Shazeer 2020, arXiv:2002.05202, eq. 6"};

}  // namespace katt::swiglu
