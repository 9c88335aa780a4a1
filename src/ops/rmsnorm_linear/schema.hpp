#pragma once

#include "op/schema.hpp"
#include "ops/rmsnorm_linear/rmsnorm_linear.hpp"

/// The tensors and numbers of the two passes.
namespace katt::rmsnorm_linear {

inline constexpr auto forward_schema = op::schema(
    "rmsnorm_linear", op::in("x", &ForwardArgs::x, "tokens hidden"),
    op::in("norm_weight", &ForwardArgs::norm_weight, "hidden"),
    op::in("weight", &ForwardArgs::weight, "out_features hidden").scale(0.03125F),
    op::in("residual", &ForwardArgs::residual, "tokens hidden").when("residual"),
    op::out("out", &ForwardArgs::out, "tokens out_features"),
    op::out("residual_out", &ForwardArgs::residual_out, "tokens hidden").when("residual"),
    op::number("eps", &ForwardArgs::eps, 0));

inline constexpr auto backward_schema = op::schema(
    "rmsnorm_linear", op::in("x", &BackwardArgs::x, "tokens hidden").reads("residual_out"),
    op::in("norm_weight", &BackwardArgs::norm_weight, "hidden"),
    op::in("weight", &BackwardArgs::weight, "out_features hidden").scale(0.03125F),
    op::in("dresidual_out", &BackwardArgs::dresidual_out, "tokens hidden").when("residual"),
    op::in("dout", &BackwardArgs::dout, "tokens out_features"),
    op::out("dx", &BackwardArgs::dx, "tokens hidden").gradient_of("x residual"),
    op::out("dnorm_weight", &BackwardArgs::dnorm_weight, "hidden"),
    op::out("dweight", &BackwardArgs::dweight, "out_features hidden"),
    op::number("eps", &BackwardArgs::eps, 0));

inline constexpr op::Documentation documentation{
    .forward =
        "y = h · norm_weight / √(mean(h²) + eps), rounded to the dtype, out = y · weightᵀ; h = x, "
        "or\n"
        "x + residual rounded to the dtype, which is residual_out. Sums are float32.",
    .backward =
        "dy = dout · weight, x̂ = x / √(mean(x²) + eps), g = dy · norm_weight;\n"
        "dx = (g − x̂ · mean(g · x̂)) / √(mean(x²) + eps) + dresidual_out,\n"
        "dnorm_weight = Σ dy · x̂ over the rows, dweight = doutᵀ · (x̂ · norm_weight).\n"
        "x is what was normalised, h where a residual was added. dx is the gradient of x and of\n"
        "the residual, dresidual_out that of h.",
    .source = "Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4"};

}  // namespace katt::rmsnorm_linear
