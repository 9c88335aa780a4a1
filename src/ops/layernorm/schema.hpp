#pragma once

#include "op/schema.hpp"
#include "ops/layernorm/layernorm.hpp"

/// The tensors and numbers of the two passes.
namespace katt::layernorm {

inline constexpr auto forward_schema = op::schema(
    "layernorm", op::in("x", &ForwardArgs::x, "tokens hidden"),
    op::in("weight", &ForwardArgs::weight, "hidden"), op::in("bias", &ForwardArgs::bias, "hidden"),
    op::out("out", &ForwardArgs::out, "tokens hidden"), op::number("eps", &ForwardArgs::eps, 0));

inline constexpr auto backward_schema = op::schema(
    "layernorm", op::in("x", &BackwardArgs::x, "tokens hidden"),
    op::in("weight", &BackwardArgs::weight, "hidden"), op::in("bias", "hidden"),
    op::in("dout", &BackwardArgs::dout, "tokens hidden"),
    op::out("dx", &BackwardArgs::dx, "tokens hidden"),
    op::out("dweight", &BackwardArgs::dweight, "hidden"),
    op::out("dbias", &BackwardArgs::dbias, "hidden"), op::number("eps", &BackwardArgs::eps, 0));

inline constexpr op::Documentation documentation{
    .forward = "out = x̂ · weight + bias, x̂ = (x − mean) / √(variance + eps) of the row.",
    .backward =
        "g = dout · weight; dx = (g − mean(g) − x̂ · mean(g · x̂)) / √(variance + eps), dweight = Σ "
        "dout · x̂, dbias = Σ dout\n"
        "over the rows.",
    .source = "Ba, Kiros & Hinton 2016, arXiv:1607.06450, eq. 3 and 4"};

}  // namespace katt::layernorm
