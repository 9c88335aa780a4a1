#include "ops/attention/attention.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <span>

#include "arrays.hpp"
#include "bindings.hpp"
#include "ops/attention/backward.hpp"
#include "ops/rope/rope.hpp"
#include "runtime.hpp"

namespace katt::python {
namespace {

/// The arguments of both passes of attention beside their tensors: scale, causal, window_left,
/// window_right, softcap, bias, alibi_slopes, kv_lengths, block_mask (rank 2) and the size of its
/// blocks.
using AttentionOptions = std::tuple<nb::object, nb::object, nb::object, nb::object, nb::object,
                                    nb::object, nb::object, nb::object, nb::object, nb::object>;

std::int64_t blocks(std::int64_t positions, std::int64_t size) {
  return size > 0 ? (positions + size - 1) / size : 0;
}

template <class Args>
void set_options(Arrays& arrays, Args& args, const AttentionOptions& options) {
  const auto& [scale, causal, left, right, softcap, bias, slopes, lengths, block_mask, size] =
      options;
  const std::int64_t block_size = arrays.integer(size, "block_mask: size");
  args.scale = static_cast<float>(arrays.real(scale, "scale"));
  args.score = {.softcap = static_cast<float>(arrays.real(softcap, "softcap")),
                .alibi_slopes = arrays.floats(slopes, "alibi_slopes", args.heads())};
  args.mask = {.causal = arrays.flag(causal, "causal"),
               .window_left = arrays.integer(left, "window"),
               .window_right = arrays.integer(right, "window"),
               .bias = arrays.tensor<4>(bias, "bias"),
               .kv_len = arrays.integers(lengths, "kv_lengths", args.batch()),
               .block_mask = arrays.bytes(
                   block_mask, "block_mask",
                   blocks(args.seq_q(), block_size) * blocks(args.seq_kv(), block_size)),
               .block_size = block_size};
  if (!arrays.place().on_host() || args.mask.kv_len == nullptr) return;
  for (const std::int64_t length :
       std::span(args.mask.kv_len, static_cast<std::size_t>(args.batch()))) {
    if (length >= 0 && length <= args.seq_kv()) continue;
    arrays.refuse("kv_lengths", std::to_string(length),
                  "lengths from 0 to the " + std::to_string(args.seq_kv()) + " keys of k");
  }
}

void attention_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                       const AttentionOptions& options, bool for_backward, const Call& call) {
  Arrays arrays("attention");
  attention::ForwardArgs args{.q = arrays.tensor<4>(q, "q"),
                              .k = arrays.tensor<4>(k, "k"),
                              .v = arrays.tensor<4>(v, "v"),
                              .out = arrays.tensor<4>(out, "out"),
                              .lse = arrays.tensor<3>(lse, "lse")};
  set_options(arrays, args, options);
  args.for_backward = for_backward;
  run(arrays, KATT_TABLE(attention::forward_variants), args, call);
}

void attention_backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                        nb::handle lse, nb::handle dq, nb::handle dk, nb::handle dv,
                        const AttentionOptions& options, const Call& call) {
  Arrays arrays("attention");
  attention::BackwardArgs args{.q = arrays.tensor<4>(q, "q"),
                               .k = arrays.tensor<4>(k, "k"),
                               .v = arrays.tensor<4>(v, "v"),
                               .out = arrays.tensor<4>(out, "out"),
                               .dout = arrays.tensor<4>(dout, "dout"),
                               .lse = arrays.tensor<3>(lse, "lse"),
                               .dq = arrays.tensor<4>(dq, "dq"),
                               .dk = arrays.tensor<4>(dk, "dk"),
                               .dv = arrays.tensor<4>(dv, "dv")};
  set_options(arrays, args, options);
  run(arrays, KATT_TABLE(attention::backward_variants), args, call);
}

void rope_forward(nb::handle x, nb::handle x2, nb::handle cache, nb::handle positions,
                  nb::handle out, nb::handle out2, nb::handle first_position,
                  nb::handle interleaved, const Call& call) {
  Arrays arrays("rope");
  rope::ForwardArgs args{.x = arrays.tensor<4>(x, "x"),
                         .out = arrays.tensor<4>(out, "out"),
                         .x2 = arrays.tensor<4>(x2, "x2"),
                         .out2 = arrays.tensor<4>(out2, "out2"),
                         .cache = arrays.tensor<2>(cache, "cache"),
                         .first_position = arrays.integer(first_position, "first_position"),
                         .interleaved = arrays.flag(interleaved, "interleaved")};
  args.positions = arrays.integers(positions, "positions", args.batch() * args.seq());
  run(arrays, KATT_TABLE(rope::forward_variants), args, call);
}

void rope_backward(nb::handle dout, nb::handle dout2, nb::handle cache, nb::handle positions,
                   nb::handle dx, nb::handle dx2, nb::handle first_position, nb::handle interleaved,
                   const Call& call) {
  Arrays arrays("rope");
  rope::BackwardArgs args{.dout = arrays.tensor<4>(dout, "dout"),
                          .dx = arrays.tensor<4>(dx, "dx"),
                          .dout2 = arrays.tensor<4>(dout2, "dout2"),
                          .dx2 = arrays.tensor<4>(dx2, "dx2"),
                          .cache = arrays.tensor<2>(cache, "cache"),
                          .first_position = arrays.integer(first_position, "first_position"),
                          .interleaved = arrays.flag(interleaved, "interleaved")};
  args.positions =
      arrays.integers(positions, "positions", args.dout.extent[0] * args.dout.extent[2]);
  run(arrays, KATT_TABLE(rope::backward_variants), args, call);
}

/// scaling: factor, low_freq_factor, high_freq_factor, original_max_position of "llama3", or None.
void rope_cache(nb::handle cache, nb::handle theta, nb::object scaling, bool f32_angles) {
  Arrays arrays("rope_cache");
  rope::FrequencyArgs frequencies{
      .theta = arrays.real(theta, "theta"),
      .precision = f32_angles ? rope::AnglePrecision::f32 : rope::AnglePrecision::f64};
  if (!scaling.is_none()) {
    frequencies.scaling = rope::Scaling::llama3;
    frequencies.factor = arrays.real(scaling[0], "scaling: factor");
    frequencies.low_freq_factor = arrays.real(scaling[1], "scaling: low_freq_factor");
    frequencies.high_freq_factor = arrays.real(scaling[2], "scaling: high_freq_factor");
    frequencies.original_max_position =
        arrays.integer(scaling[3], "scaling: original_max_position_embeddings");
  }
  const TensorRef<2> ref = arrays.tensor<2>(cache, "cache");
  Runtime::get().run(arrays.place(), 0, [&](const auto& exec, const auto&) {
    rope::build_cache(exec, frequencies, ref);
  });
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention_forward", attention_forward, nb::arg("q"), nb::arg("k"), nb::arg("v"),
        nb::arg("out"), nb::arg("lse").none(), nb::arg("options"), nb::arg("for_backward"),
        nb::arg("call"));
  m.def("attention_backward", attention_backward, nb::arg("dout"), nb::arg("q"), nb::arg("k"),
        nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"),
        nb::arg("options"), nb::arg("call"));
  m.def("alibi_slopes", attention::alibi_slopes, nb::arg("heads"));
  m.def("rope_forward", rope_forward, nb::arg("x"), nb::arg("x2").none(), nb::arg("cache"),
        nb::arg("positions").none(), nb::arg("out"), nb::arg("out2").none(),
        nb::arg("first_position").none(), nb::arg("interleaved").none(), nb::arg("call"));
  m.def("rope_backward", rope_backward, nb::arg("dout"), nb::arg("dout2").none(), nb::arg("cache"),
        nb::arg("positions").none(), nb::arg("dx"), nb::arg("dx2").none(),
        nb::arg("first_position").none(), nb::arg("interleaved").none(), nb::arg("call"));
  m.def("rope_cache", rope_cache, nb::arg("cache"), nb::arg("theta").none(),
        nb::arg("scaling").none(), nb::arg("f32_angles"));
}

}  // namespace katt::python
