#pragma once

#include "op/schema.hpp"
#include "ops/swiglu_mlp/swiglu_mlp.hpp"

/// The tensors and numbers of the two passes.
namespace katt::swiglu_mlp {

/// Weights are as small as those of a trained model, so that gate and up are of order one.
inline constexpr auto forward_schema = op::schema(
    "swiglu_mlp", op::in("x", &ForwardArgs::x, "tokens hidden"),
    op::in("w_gate", &ForwardArgs::w_gate, "intermediate hidden").letters("(F, H)").scale(0.03125F),
    op::in("w_up", &ForwardArgs::w_up, "intermediate hidden").letters("(F, H)").scale(0.03125F),
    op::in("w_down", &ForwardArgs::w_down, "hidden intermediate").letters("(H, F)").scale(0.03125F),
    op::out("out", &ForwardArgs::out, "tokens hidden"));

inline constexpr auto backward_schema = op::schema(
    "swiglu_mlp", op::in("x", &BackwardArgs::x, "tokens hidden"),
    op::in("w_gate", &BackwardArgs::w_gate, "intermediate hidden")
        .letters("(F, H)")
        .scale(0.03125F),
    op::in("w_up", &BackwardArgs::w_up, "intermediate hidden").letters("(F, H)").scale(0.03125F),
    op::in("w_down", &BackwardArgs::w_down, "hidden intermediate")
        .letters("(H, F)")
        .scale(0.03125F),
    op::in("dout", &BackwardArgs::dout, "tokens hidden"),
    op::out("dx", &BackwardArgs::dx, "tokens hidden"),
    op::out("dw_gate", &BackwardArgs::dw_gate, "intermediate hidden").letters("(F, H)"),
    op::out("dw_up", &BackwardArgs::dw_up, "intermediate hidden").letters("(F, H)"),
    op::out("dw_down", &BackwardArgs::dw_down, "hidden intermediate").letters("(H, F)"));

inline constexpr op::Documentation documentation{
    .forward =
        "The MLP of LLaMA: out = (silu(x · w_gateᵀ) · (x · w_upᵀ)) · w_downᵀ. Sums are float32.",
    .backward =
        "dh = dout · w_down, dgate = dh · up · silu′(gate), dup = dh · silu(gate), gate and up "
        "computed again;\n"
        "dx = dgate · w_gate + dup · w_up, dw_gate = dgateᵀ · x, dw_up = dupᵀ · x, dw_down = doutᵀ "
        "· h.",
    .source = "Shazeer 2020, arXiv:2002.05202, eq. 6"};

}  // namespace katt::swiglu_mlp
