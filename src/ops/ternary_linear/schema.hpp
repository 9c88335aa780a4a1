#pragma once

#include "op/schema.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"

/// The tensors of the two passes. Each variant reads the weight in a form of its own, which derive() makes;
/// other programs get the dequantised one.
namespace katt::ternary_linear {

inline constexpr auto forward_schema =
    op::schema("ternary_linear", op::in("x", &ForwardArgs::x, "tokens in_features"),
               op::in("weight", "out_features in_features").scale(0.02F).hidden(),
               op::out("out", &ForwardArgs::out, "tokens out_features"),
               op::in("dense", &ForwardArgs::dense, "out_features in_features")
                   .optional()
                   .read_by("naive", "weight")
                   .seen_as("weight"),
               op::in("packed2", "packed2_bytes").bytes().read_by("packed2", "weight").hidden(),
               op::in("packed5", "packed5_bytes").bytes().read_by("packed5", "weight").hidden());

inline constexpr auto backward_schema =
    op::schema("ternary_linear", op::in("x", &BackwardArgs::x, "tokens in_features"),
               op::in("weight", "out_features in_features").scale(0.02F).hidden(),
               op::in("dout", &BackwardArgs::dout, "tokens out_features"),
               op::in("dense", &BackwardArgs::dense, "out_features in_features")
                   .optional()
                   .read_by("naive", "weight")
                   .seen_as("weight"),
               op::in("packed2", "packed2_bytes").bytes().read_by("packed2", "weight").hidden(),
               op::in("packed5", "packed5_bytes").bytes().read_by("packed5", "weight").hidden(),
               op::out("dx", &BackwardArgs::dx, "tokens in_features"),
               op::out("dweight", &BackwardArgs::dweight, "out_features in_features"));

inline constexpr op::Documentation documentation{
    .forward =
        "out = (x_q · W_qᵀ) · s_w / s_x, x_q = x · s_x rounded to 8 bits, s_x = 127 / max(max "
        "|x|, 1e-5) of every row;\n"
        "W_q and s_w as packed.",
    .backward =
        "The straight-through estimator: dx = dout · W_q · s_w, dweight = doutᵀ · x_q / s_x.",
    .source = "Ma et al. 2024, arXiv:2402.17764; Bengio et al. 2013, arXiv:1308.3432"};

}  // namespace katt::ternary_linear
