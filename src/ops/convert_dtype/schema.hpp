#pragma once

#include "op/schema.hpp"
#include "ops/convert_dtype/convert_dtype.hpp"

/// The tensors and numbers of the two passes.
namespace katt::convert_dtype {

inline constexpr auto forward_schema =
    op::schema("convert", op::in("x", &ForwardArgs::x, "tokens hidden"),
               op::out("out", &ForwardArgs::out, "tokens hidden").dtype("to"));

/// The conversion back.
inline constexpr auto backward_schema =
    op::schema("convert", op::in("dout", &ForwardArgs::x, "tokens hidden").dtype("to"),
               op::out("dx", &ForwardArgs::out, "tokens hidden"));

inline constexpr op::Documentation documentation{
    .forward = "out = x rounded to nearest, ties to even.",
    .backward = "dx = dout rounded to the dtype of x.",
    .source = "IEEE 754-2019, §4.3.1 and §5.4.2"};

}  // namespace katt::convert_dtype
