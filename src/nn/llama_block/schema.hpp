#pragma once

#include "nn/llama_block/llama_block.hpp"
#include "op/schema.hpp"

/// The tensors outside a block. Both passes have the weights and the stream; the axis `backward` is 1
/// in the backward pass.
namespace katt::llama_block {

/// The path of a weight, or of its gradient.
template <class Member>
constexpr auto weight(Member member) {
  return op::path(&Tensors::weights, member);
}
template <class Member>
constexpr auto gradient(Member member) {
  return op::path(&Tensors::gradients, member);
}

/// Row sums of squares stay about one from tensor to tensor, as in a model. dout_sampled is dout at
/// the tokens that are checked and 0 at the others.
inline constexpr auto schema = op::schema(
    "llama_block",
    op::in("input_norm", weight(&nn::BlockWeights::input_norm), "hidden").scale(0.1F).mean(1.0F),
    op::in("qkv", weight(&nn::BlockWeights::qkv), "qkv_size hidden").fan_in("hidden"),
    op::in("o", weight(&nn::BlockWeights::o), "hidden q_size").fan_in("q_size"),
    op::in("post_norm", weight(&nn::BlockWeights::post_norm), "hidden").scale(0.1F).mean(1.0F),
    op::in("gate_up", weight(&nn::BlockWeights::gate_up), "gate_up_size hidden").fan_in("hidden"),
    op::in("down", weight(&nn::BlockWeights::down), "hidden intermediate").fan_in("intermediate"),
    op::in("stream", &Tensors::stream, "tokens hidden"),
    op::in("delta", &Tensors::delta, "tokens hidden"),
    op::in("dout", "tokens hidden").when("backward"),
    op::in("dout_sampled", "tokens hidden").when("sampled").derived("dout"),
    op::out("h", &Tensors::h, "tokens hidden").unless("backward"),
    op::out("delta_out", &Tensors::delta_out, "tokens hidden").unless("backward"),
    op::out("dx", &Tensors::dx, "tokens hidden").when("backward"),
    op::out("dinput_norm", gradient(&nn::BlockWeights::input_norm), "hidden")
        .when("backward")
        .f32(),
    op::out("dqkv", gradient(&nn::BlockWeights::qkv), "qkv_size hidden").when("backward").f32(),
    op::out("do", gradient(&nn::BlockWeights::o), "hidden q_size").when("backward").f32(),
    op::out("dpost_norm", gradient(&nn::BlockWeights::post_norm), "hidden").when("backward").f32(),
    op::out("dgate_up", gradient(&nn::BlockWeights::gate_up), "gate_up_size hidden")
        .when("backward")
        .f32(),
    op::out("ddown", gradient(&nn::BlockWeights::down), "hidden intermediate")
        .when("backward")
        .f32());

}  // namespace katt::llama_block
