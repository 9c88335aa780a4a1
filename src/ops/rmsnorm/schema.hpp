#pragma once

#include "op/schema.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"

/// The tensors and numbers of the two passes.
namespace katt::rmsnorm {

inline constexpr auto forward_schema = op::schema(
    "rmsnorm", op::in("x", &ForwardArgs::x, "tokens hidden"),
    op::in("weight", &ForwardArgs::weight, "hidden"),
    op::in("residual", &ForwardArgs::residual, "tokens hidden").when("residual"),
    op::out("residual_out", &ForwardArgs::residual_out, "tokens hidden").when("residual"),
    op::out("out", &ForwardArgs::out, "tokens hidden").unless("quantise"),
    op::out("out_q", &ForwardArgs::out_q, "tokens hidden").when("quantise"),
    op::out("out_q_scale", &ForwardArgs::out_q_scale, "tokens").when("quantise"),
    op::number("eps", &ForwardArgs::eps, 0));

inline constexpr auto backward_schema = op::schema(
    "rmsnorm", op::in("x", &BackwardArgs::x, "tokens hidden"),
    op::in("weight", &BackwardArgs::weight, "hidden"),
    op::in("dresidual_out", &BackwardArgs::dresidual_out, "tokens hidden").when("residual"),
    op::in("dout", &BackwardArgs::dout, "tokens hidden"),
    op::out("dx", &BackwardArgs::dx, "tokens hidden"),
    op::out("dweight", &BackwardArgs::dweight, "hidden"), op::number("eps", &BackwardArgs::eps, 0));

}  // namespace katt::rmsnorm
