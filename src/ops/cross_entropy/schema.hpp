#pragma once

#include "op/reference/problem.hpp"
#include "op/schema.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"

/// The tensors and numbers of the two passes.
namespace katt::cross_entropy {

inline std::int64_t draw_target(double u, const testing::Problem& p) {
  return static_cast<std::int64_t>(u * static_cast<double>(p.extent("vocab")));
}

/// Logits spread like those of a trained model: most classes far below the largest. The loss is a
/// vector of one element, and no axis.
inline constexpr auto forward_schema =
    op::schema("cross_entropy", op::in("logits", &ForwardArgs::logits, "tokens vocab").scale(3.0F),
               op::in("targets", &ForwardArgs::targets, "tokens").draw(draw_target),
               op::out("loss", &ForwardArgs::loss, "").f32(),
               op::out("statistics", &ForwardArgs::statistics, "tokens 2")
                   .letters("(T, 2)")
                   .f32()
                   .hidden()
                   .optional(),
               op::number("ignore_index", &ForwardArgs::ignore_index).optional());

inline constexpr auto backward_schema =
    op::schema("cross_entropy", op::in("logits", &BackwardArgs::logits, "tokens vocab").scale(3.0F),
               op::in("targets", &BackwardArgs::targets, "tokens").draw(draw_target),
               op::in("statistics", &BackwardArgs::statistics, "tokens 2")
                   .letters("(T, 2)")
                   .f32()
                   .derived("logits")
                   .hidden(),
               op::out("dlogits", &BackwardArgs::dlogits, "tokens vocab"),
               op::number("dloss", &BackwardArgs::dloss).optional(),
               op::number("ignore_index", &BackwardArgs::ignore_index).optional());

inline constexpr op::Documentation documentation{
    .forward =
        "loss = the mean over the tokens whose target is not ignore_index of log Σ exp logits − "
        "logits[target].\n"
        "statistics are for the backward pass: the maximum of the logits of each token, and log Σ "
        "exp(logits − maximum).",
    .backward = "dlogits = dloss · (softmax(logits) − onehot(targets)) / tokens that count.",
    .source = ""};

}  // namespace katt::cross_entropy
