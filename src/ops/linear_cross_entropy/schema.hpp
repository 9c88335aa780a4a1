#pragma once

#include "op/reference/problem.hpp"
#include "op/schema.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"

/// The tensors and numbers of the two passes. The reference reads max and log Σ of every token, of which it
/// checks a sample; they are those of the fastest forward pass, as `statistics` of the backward pass.
namespace katt::linear_cross_entropy {

inline std::int64_t draw_target(double u, const testing::Problem& p) {
  return static_cast<std::int64_t>(u * static_cast<double>(p.extent("vocab")));
}

inline constexpr auto forward_schema =
    op::schema("linear_cross_entropy", op::in("hidden", &ForwardArgs::hidden, "tokens hidden"),
               op::in("weight", &ForwardArgs::weight, "vocab hidden").scale(0.03125F),
               op::in("targets", &ForwardArgs::targets, "tokens").draw(draw_target),
               op::in("reference_statistics", "tokens 2").f32().read_by("reference").hidden(),
               op::out("loss", &ForwardArgs::loss, "").f32(),
               op::out("statistics", &ForwardArgs::statistics, "tokens 2").f32().hidden(),
               op::out("logits", &ForwardArgs::logits, "tokens vocab").when("logits").hidden(),
               op::out("kept_logits", &ForwardArgs::kept_logits, "tokens vocab")
                   .f32()
                   .when("kept_logits")
                   .hidden(),
               op::number("ignore_index", &ForwardArgs::ignore_index).optional());

/// Variant "naive" reads the logits of its own forward pass, and its statistics.
inline constexpr auto backward_schema =
    op::schema("linear_cross_entropy", op::in("hidden", &BackwardArgs::hidden, "tokens hidden"),
               op::in("weight", &BackwardArgs::weight, "vocab hidden").scale(0.03125F),
               op::in("targets", &BackwardArgs::targets, "tokens").draw(draw_target),
               op::in("reference_statistics", "tokens 2").f32().read_by("reference").hidden(),
               op::in("statistics", &BackwardArgs::statistics, "tokens 2")
                   .f32()
                   .derived("hidden weight")
                   .hidden(),
               op::in("statistics", &BackwardArgs::statistics, "tokens 2")
                   .f32()
                   .kept_by("naive", "hidden weight")
                   .hidden(),
               op::in("logits", &BackwardArgs::logits, "tokens vocab")
                   .when("logits")
                   .kept_by("naive", "hidden weight")
                   .hidden(),
               op::in("kept_logits", &BackwardArgs::kept_logits, "tokens vocab")
                   .f32()
                   .when("kept_logits")
                   .derived("hidden weight")
                   .hidden(),
               op::out("dhidden", &BackwardArgs::dhidden, "tokens hidden"),
               op::out("dweight", &BackwardArgs::dweight, "vocab hidden"),
               op::number("dloss", &BackwardArgs::dloss).optional(),
               op::number("ignore_index", &BackwardArgs::ignore_index).optional());

inline constexpr op::Documentation documentation{
    .forward =
        "loss = the mean over the tokens whose target is not ignore_index of log Σ exp "
        "logits − logits[target],\n"
        "logits = hidden · weightᵀ, which variant \"fused\" never stores.\n"
        "statistics are for the backward pass: the maximum of the logits of each token, and "
        "log Σ exp(logits − maximum).",
    .backward =
        "g = dloss · (softmax(logits) − onehot(targets)) / tokens that count;\n"
        "dhidden = g · weight, dweight = gᵀ · hidden.",
    .source = "Milakov & Gimelshein 2018, arXiv:1805.02867; Wijmans et al. 2024, arXiv:2411.09009"};

}  // namespace katt::linear_cross_entropy
