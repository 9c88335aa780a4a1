#pragma once

#include "op/reference/problem.hpp"
#include "op/schema.hpp"
#include "ops/embedding/embedding.hpp"

/// The tensors and numbers of the two passes.
namespace katt::embedding {

/// Few ids are frequent and most are rare, as in text: the cube of a uniform variable.
inline std::int64_t draw_id(double u, const testing::Problem& p) {
  return static_cast<std::int64_t>(u * u * u * static_cast<double>(p.extent("vocab")));
}

inline constexpr auto forward_schema =
    op::schema("embedding", op::in("ids", &ForwardArgs::ids, "tokens").draw(draw_id),
               op::in("weight", &ForwardArgs::weight, "vocab hidden"),
               op::out("out", &ForwardArgs::out, "tokens hidden"));

inline constexpr auto backward_schema =
    op::schema("embedding", op::in("ids", &BackwardArgs::ids, "tokens").draw(draw_id),
               op::in("dout", &BackwardArgs::dout, "tokens hidden"),
               op::out("dweight", &BackwardArgs::dweight, "vocab hidden"));

inline constexpr op::Documentation documentation{
    .forward = "out(t) = weight(ids(t)). An id outside 0 … vocab − 1 gives NaN.",
    .backward = "dweight(v) = Σ dout(t) over the tokens t with ids(t) = v.",
    .source = ""};

}  // namespace katt::embedding
