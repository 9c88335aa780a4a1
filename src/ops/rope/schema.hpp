#pragma once

#include "op/reference/problem.hpp"
#include "op/schema.hpp"
#include "ops/rope/rope.hpp"

/// The tensors and numbers of the two passes.
namespace katt::rope {

inline std::int64_t draw_position(double u, const testing::Problem& /*problem*/) {
  constexpr double context = 131072;
  return static_cast<std::int64_t>(u * context);
}

/// The cache has a row for each position that comes up, in order, so that a far position costs no
/// more than a near one. `rows` are those of the explicit positions in it.
inline constexpr auto forward_schema = op::schema(
    "rope", op::in("x", &ForwardArgs::x, "batch heads seq_q head_dim").letters("(B, H, S, D)"),
    op::in("x2", &ForwardArgs::x2, "batch kv_heads seq_q head_dim")
        .letters("(B, H, S, D)")
        .when("kv_heads"),
    op::out("out", &ForwardArgs::out, "batch heads seq_q head_dim")
        .letters("(B, H, S, D)")
        .over("x"),
    op::out("out2", &ForwardArgs::out2, "batch kv_heads seq_q head_dim")
        .letters("(B, H, S, D)")
        .when("kv_heads")
        .over("x2"),
    op::in("positions", "batch seq_q")
        .letters("(B, S)")
        .when("positions")
        .integers()
        .draw(draw_position)
        .hidden(),
    op::in("rows", &ForwardArgs::positions, "batch seq_q")
        .argument("positions")
        .letters("(B, S)")
        .when("positions")
        .draw(draw_position)
        .derived()
        .hidden(),
    op::in("cache", &ForwardArgs::cache, "cache_rows head_dim").letters("(R, D)").f32().derived(),
    op::number("first_position", &ForwardArgs::first_position).optional(),
    op::number("interleaved", &ForwardArgs::interleaved));

inline constexpr auto backward_schema = op::schema(
    "rope",
    op::in("dout", &BackwardArgs::dout, "batch heads seq_q head_dim").letters("(B, H, S, D)"),
    op::in("dout2", &BackwardArgs::dout2, "batch kv_heads seq_q head_dim")
        .letters("(B, H, S, D)")
        .when("kv_heads"),
    op::out("dx", &BackwardArgs::dx, "batch heads seq_q head_dim")
        .letters("(B, H, S, D)")
        .over("dout"),
    op::out("dx2", &BackwardArgs::dx2, "batch kv_heads seq_q head_dim")
        .letters("(B, H, S, D)")
        .when("kv_heads")
        .over("dout2"),
    op::in("positions", "batch seq_q")
        .letters("(B, S)")
        .when("positions")
        .integers()
        .draw(draw_position)
        .hidden(),
    op::in("rows", &BackwardArgs::positions, "batch seq_q")
        .argument("positions")
        .letters("(B, S)")
        .when("positions")
        .draw(draw_position)
        .derived()
        .hidden(),
    op::in("cache", &BackwardArgs::cache, "cache_rows head_dim").letters("(R, D)").f32().derived(),
    op::number("first_position", &BackwardArgs::first_position).optional(),
    op::number("interleaved", &BackwardArgs::interleaved));

inline constexpr op::Documentation documentation{
    .forward =
        "Turns each pair (a, b) of elements of x, and of x2, by its angle: (x[a]·cos − x[b]·sin, "
        "x[b]·cos + x[a]·sin).\n"
        "Pairs are (i, i + head_dim/2), or interleaved (2i, 2i + 1). cache: of rope_cache. "
        "positions say the row of the\n"
        "cache, else first_position, first_position + 1, …; a row that the cache lacks gives NaN.",
    .backward = "The gradients of out and out2, turned by the negative angles.",
    .source = "Su et al. 2021, arXiv:2104.09864, section 3.2.2"};

}  // namespace katt::rope
