#pragma once

#include "op/schema.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"

/// The tensors and numbers of the two passes.
namespace katt::rmsnorm {

inline constexpr auto forward_schema = op::schema(
    "rmsnorm", op::in("x", &ForwardArgs::x, "tokens hidden"),
    op::in("weight", &ForwardArgs::weight, "hidden"),
    op::out("out", &ForwardArgs::out, "tokens hidden").unless("quantise"),
    op::in("residual", &ForwardArgs::residual, "tokens hidden").when("residual"),
    op::out("residual_out", &ForwardArgs::residual_out, "tokens hidden").when("residual"),
    op::out("out_q", &ForwardArgs::out_q, "tokens hidden").when("quantise"),
    op::out("out_q_scale", &ForwardArgs::out_q_scale, "tokens").when("quantise"),
    op::number("eps", &ForwardArgs::eps, 0));

inline constexpr auto backward_schema = op::schema(
    "rmsnorm", op::in("x", &BackwardArgs::x, "tokens hidden").reads("residual_out"),
    op::in("weight", &BackwardArgs::weight, "hidden"),
    op::in("dresidual_out", &BackwardArgs::dresidual_out, "tokens hidden").when("residual"),
    op::in("dout", &BackwardArgs::dout, "tokens hidden"),
    op::out("dx", &BackwardArgs::dx, "tokens hidden").gradient_of("x residual"),
    op::out("dweight", &BackwardArgs::dweight, "hidden"), op::number("eps", &BackwardArgs::eps, 0));

inline constexpr op::Documentation documentation{
    .forward =
        "out = h · weight / √(mean(h²) + eps), h = x, or x + residual rounded to the dtype, which "
        "is residual_out.\n"
        "quantise: instead of out, out_q = clamp(round(out · s), −128, 127) and out_q_scale = s = "
        "127 / max(max |out|,\n"
        "1e-5) of the row.",
    .backward =
        "x̂ = x / √(mean(x²) + eps), g = dout · weight; dx = (g − x̂ · mean(g · x̂)) / √(mean(x²) + "
        "eps) + dresidual_out,\n"
        "dweight = Σ dout · x̂ over the rows. x is what was normalised, h where a residual was "
        "added. dx is the gradient of\n"
        "x and of the residual, dresidual_out that of h.",
    .source = "Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4"};

}  // namespace katt::rmsnorm
