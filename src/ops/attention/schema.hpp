#pragma once

#include "op/reference/problem.hpp"
#include "op/schema.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"

/// The tensors and numbers of the two passes.
namespace katt::attention {

inline std::vector<float> slopes_of(const testing::Problem& p) {
  return alibi_slopes(p.extent("heads"));
}
inline std::int64_t draw_length(double u, const testing::Problem& p) {
  const std::int64_t least = p.extent("kv_len_min");
  const auto choices = static_cast<double>(p.extent("seq_kv") - least + 1);
  return least + static_cast<std::int64_t>(u * choices);
}
inline std::int64_t draw_block(double u, const testing::Problem& p) {
  return u < p.parameter("block_density") ? 1 : 0;
}

inline constexpr auto forward_schema = op::schema(
    "attention",
    op::in("q", &ForwardArgs::q, "batch heads seq_q head_dim").letters("(B, Hq, Sq, D)"),
    op::in("k", &ForwardArgs::k, "batch kv_heads seq_kv head_dim").letters("(B, Hkv, Skv, D)"),
    op::in("v", &ForwardArgs::v, "batch kv_heads seq_kv head_dim").letters("(B, Hkv, Skv, D)"),
    op::in("mask", op::path(&ForwardArgs::mask, &MaskArgs::bias),
           "mask_batch mask_heads seq_q seq_kv")
        .letters("(B or 1, Hq or 1, Sq, Skv)")
        .argument("bias")
        .when("bias"),
    op::in("alibi_slopes", op::path(&ForwardArgs::score, &ScoreArgs::alibi_slopes), "heads")
        .letters("(Hq)")
        .when("alibi")
        .values(slopes_of),
    op::in("kv_len", op::path(&ForwardArgs::mask, &MaskArgs::kv_len), "batch")
        .argument("kv_lengths")
        .when("has_kv_len")
        .draw(draw_length),
    op::in("block_mask", op::path(&ForwardArgs::mask, &MaskArgs::block_mask),
           "block_rows block_columns")
        .letters("(ceil(Sq/block_size), ceil(Skv/block_size))")
        .when("has_block_mask")
        .draw(draw_block),
    op::out("out", &ForwardArgs::out, "batch heads seq_q head_dim").letters("(B, Hq, Sq, D)"),
    op::out("lse", &ForwardArgs::lse, "batch heads seq_q")
        .letters("(B, Hq, Sq)")
        .f32()
        .optional()
        .not_of_peers(),
    op::number("scale", &ForwardArgs::scale).optional(),
    op::number("for_backward", &ForwardArgs::for_backward).optional(),
    op::number("softcap", op::path(&ForwardArgs::score, &ScoreArgs::softcap), 0),
    op::number("causal", op::path(&ForwardArgs::mask, &MaskArgs::causal)),
    op::number("window_left", op::path(&ForwardArgs::mask, &MaskArgs::window_left)),
    op::number("window_right", op::path(&ForwardArgs::mask, &MaskArgs::window_right)),
    op::number("block_size", op::path(&ForwardArgs::mask, &MaskArgs::block_size)));

/// out and lse come from the fastest forward pass that goes with a backward pass.
inline constexpr auto backward_schema = op::schema(
    "attention",
    op::in("q", &BackwardArgs::q, "batch heads seq_q head_dim").letters("(B, Hq, Sq, D)"),
    op::in("k", &BackwardArgs::k, "batch kv_heads seq_kv head_dim").letters("(B, Hkv, Skv, D)"),
    op::in("v", &BackwardArgs::v, "batch kv_heads seq_kv head_dim").letters("(B, Hkv, Skv, D)"),
    op::in("mask", op::path(&BackwardArgs::mask, &MaskArgs::bias),
           "mask_batch mask_heads seq_q seq_kv")
        .letters("(B or 1, Hq or 1, Sq, Skv)")
        .argument("bias")
        .when("bias"),
    op::in("alibi_slopes", op::path(&BackwardArgs::score, &ScoreArgs::alibi_slopes), "heads")
        .letters("(Hq)")
        .when("alibi")
        .values(slopes_of),
    op::in("kv_len", op::path(&BackwardArgs::mask, &MaskArgs::kv_len), "batch")
        .argument("kv_lengths")
        .when("has_kv_len")
        .draw(draw_length),
    op::in("block_mask", op::path(&BackwardArgs::mask, &MaskArgs::block_mask),
           "block_rows block_columns")
        .letters("(ceil(Sq/block_size), ceil(Skv/block_size))")
        .when("has_block_mask")
        .draw(draw_block),
    op::in("out", &BackwardArgs::out, "batch heads seq_q head_dim")
        .letters("(B, Hq, Sq, D)")
        .derived("q k v mask")
        .hidden(),
    op::in("lse", &BackwardArgs::lse, "batch heads seq_q")
        .letters("(B, Hq, Sq)")
        .f32()
        .derived("q k v mask")
        .hidden(),
    op::in("dout", &BackwardArgs::dout, "batch heads seq_q head_dim").letters("(B, Hq, Sq, D)"),
    op::out("dq", &BackwardArgs::dq, "batch heads seq_q head_dim").letters("(B, Hq, Sq, D)"),
    op::out("dk", &BackwardArgs::dk, "batch kv_heads seq_kv head_dim").letters("(B, Hkv, Skv, D)"),
    op::out("dv", &BackwardArgs::dv, "batch kv_heads seq_kv head_dim").letters("(B, Hkv, Skv, D)"),
    op::out("dmask", &BackwardArgs::dmask, "mask_batch mask_heads seq_q seq_kv")
        .letters("(B or 1, Hq or 1, Sq, Skv)")
        .argument("dbias")
        .when("has_dmask"),
    op::number("scale", &BackwardArgs::scale).optional(),
    op::number("softcap", op::path(&BackwardArgs::score, &ScoreArgs::softcap), 0),
    op::number("causal", op::path(&BackwardArgs::mask, &MaskArgs::causal)),
    op::number("window_left", op::path(&BackwardArgs::mask, &MaskArgs::window_left)),
    op::number("window_right", op::path(&BackwardArgs::mask, &MaskArgs::window_right)),
    op::number("block_size", op::path(&BackwardArgs::mask, &MaskArgs::block_size)));

inline constexpr op::Documentation documentation{
    .forward = "out = softmax(rule(scale · q·kᵀ) + bias) · v over the keys that each query sees.",
    .backward =
        "dS = P ⊙ (dout·vᵀ − Σ dout·out), P = softmax; dq = scale · dS·k, dk = scale · dSᵀ·q, dv = "
        "Pᵀ·dout,\n"
        "dbias = Σ dS over what the bias is broadcast to.",
    .source = "Vaswani et al. 2017, arXiv:1706.03762, eq. 1"};

}  // namespace katt::attention
