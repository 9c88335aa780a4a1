#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "ops/convert_dtype/convert_dtype.hpp"
#include "ops/embedding/embedding.hpp"
#include "ops/layernorm/layernorm.hpp"
#include "ops/linear/linear.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "ops/softmax/softmax.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "ops/swiglu_mlp/swiglu_mlp.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"
#include "runtime.hpp"

namespace katt::python {
namespace {

using Object = nb::handle;

void rmsnorm_forward(Object x, Object weight, Object residual, Object out, Object residual_out,
                     Object out_q, Object out_q_scale, Object eps, const Call& call) {
  Arrays in("rmsnorm");
  rmsnorm::ForwardArgs args{.x = in.rows(x, "x"),
                            .weight = in.tensor<1>(weight, "weight"),
                            .residual = in.rows(residual, "residual"),
                            .out = in.rows(out, "out"),
                            .residual_out = in.rows(residual_out, "residual_out"),
                            .eps = static_cast<float>(in.real(eps, "eps"))};
  args.out_q = in.int8s(out_q, "out_q", args.tokens() * args.hidden());
  args.out_q_scale = in.floats(out_q_scale, "out_q_scale", args.tokens());
  run(in, KATT_TABLE(rmsnorm::forward_variants), args, call);
}

void rmsnorm_backward(Object dout, Object x, Object weight, Object dresidual_out, Object dx,
                      Object dweight, Object eps, const Call& call) {
  Arrays in("rmsnorm");
  run(in, KATT_TABLE(rmsnorm::backward_variants),
      rmsnorm::BackwardArgs{.dout = in.rows(dout, "dout"),
                            .x = in.rows(x, "x"),
                            .weight = in.tensor<1>(weight, "weight"),
                            .dresidual_out = in.rows(dresidual_out, "dresidual_out"),
                            .dx = in.rows(dx, "dx"),
                            .dweight = in.tensor<1>(dweight, "dweight"),
                            .eps = static_cast<float>(in.real(eps, "eps"))},
      call);
}

void layernorm_forward(Object x, Object weight, Object bias, Object out, Object eps,
                       const Call& call) {
  Arrays in("layernorm");
  run(in, KATT_TABLE(layernorm::forward_variants),
      layernorm::ForwardArgs{.x = in.rows(x, "x"),
                             .weight = in.tensor<1>(weight, "weight"),
                             .bias = in.tensor<1>(bias, "bias"),
                             .out = in.rows(out, "out"),
                             .eps = static_cast<float>(in.real(eps, "eps"))},
      call);
}

void layernorm_backward(Object dout, Object x, Object weight, Object dx, Object dweight,
                        Object dbias, Object eps, const Call& call) {
  Arrays in("layernorm");
  run(in, KATT_TABLE(layernorm::backward_variants),
      layernorm::BackwardArgs{.x = in.rows(x, "x"),
                              .weight = in.tensor<1>(weight, "weight"),
                              .dout = in.rows(dout, "dout"),
                              .dx = in.rows(dx, "dx"),
                              .dweight = in.tensor<1>(dweight, "dweight"),
                              .dbias = in.tensor<1>(dbias, "dbias"),
                              .eps = static_cast<float>(in.real(eps, "eps"))},
      call);
}

void softmax_forward(Object x, Object out, const Call& call) {
  Arrays in("softmax");
  run(in, KATT_TABLE(softmax::forward_variants),
      softmax::ForwardArgs{.x = in.rows(x, "x"), .out = in.rows(out, "out")}, call);
}

void softmax_backward(Object dout, Object x, Object dx, const Call& call) {
  Arrays in("softmax");
  run(in, KATT_TABLE(softmax::backward_variants),
      softmax::BackwardArgs{
          .x = in.rows(x, "x"), .dout = in.rows(dout, "dout"), .dx = in.rows(dx, "dx")},
      call);
}

void swiglu_forward(Object gate, Object up, Object out, const Call& call) {
  Arrays in("swiglu");
  run(in, KATT_TABLE(swiglu::forward_variants),
      swiglu::ForwardArgs{
          .gate = in.rows(gate, "gate"), .up = in.rows(up, "up"), .out = in.rows(out, "out")},
      call);
}

void swiglu_backward(Object dout, Object gate, Object up, Object dgate, Object dup,
                     const Call& call) {
  Arrays in("swiglu");
  run(in, KATT_TABLE(swiglu::backward_variants),
      swiglu::BackwardArgs{.gate = in.rows(gate, "gate"),
                           .up = in.rows(up, "up"),
                           .dout = in.rows(dout, "dout"),
                           .dgate = in.rows(dgate, "dgate"),
                           .dup = in.rows(dup, "dup")},
      call);
}

void swiglu_mlp_forward(Object x, Object w_gate, Object w_up, Object w_down, Object out,
                        const Call& call) {
  Arrays in("swiglu_mlp");
  run(in, KATT_TABLE(swiglu_mlp::forward_variants),
      swiglu_mlp::ForwardArgs{.x = in.rows(x, "x"),
                              .w_gate = in.tensor<2>(w_gate, "w_gate"),
                              .w_up = in.tensor<2>(w_up, "w_up"),
                              .w_down = in.tensor<2>(w_down, "w_down"),
                              .out = in.rows(out, "out")},
      call);
}

void swiglu_mlp_backward(Object dout, Object x, Object w_gate, Object w_up, Object w_down,
                         Object dx, Object dw_gate, Object dw_up, Object dw_down,
                         const Call& call) {
  Arrays in("swiglu_mlp");
  run(in, KATT_TABLE(swiglu_mlp::backward_variants),
      swiglu_mlp::BackwardArgs{.x = in.rows(x, "x"),
                               .w_gate = in.tensor<2>(w_gate, "w_gate"),
                               .w_up = in.tensor<2>(w_up, "w_up"),
                               .w_down = in.tensor<2>(w_down, "w_down"),
                               .dout = in.rows(dout, "dout"),
                               .dx = in.rows(dx, "dx"),
                               .dw_gate = in.tensor<2>(dw_gate, "dw_gate"),
                               .dw_up = in.tensor<2>(dw_up, "dw_up"),
                               .dw_down = in.tensor<2>(dw_down, "dw_down")},
      call);
}

void linear_forward(Object x, Object weight, Object bias, Object out, const Call& call) {
  Arrays in("linear");
  run(in, KATT_TABLE(linear::forward_variants),
      linear::ForwardArgs{.x = in.rows(x, "x"),
                          .weight = in.tensor<2>(weight, "weight"),
                          .bias = in.tensor<1>(bias, "bias"),
                          .out = in.rows(out, "out")},
      call);
}

void linear_backward(Object dout, Object x, Object weight, Object dx, Object dweight, Object dbias,
                     const Call& call) {
  Arrays in("linear");
  run(in, KATT_TABLE(linear::backward_variants),
      linear::BackwardArgs{.x = in.rows(x, "x"),
                           .weight = in.tensor<2>(weight, "weight"),
                           .dout = in.rows(dout, "dout"),
                           .dx = in.rows(dx, "dx"),
                           .dweight = in.tensor<2>(dweight, "dweight"),
                           .dbias = in.tensor<1>(dbias, "dbias")},
      call);
}

void embedding_forward(Object ids, Object weight, Object out, const Call& call) {
  Arrays in("embedding");
  embedding::ForwardArgs args{.weight = in.tensor<2>(weight, "weight"), .out = in.rows(out, "out")};
  args.ids = in.integers(ids, "ids", args.out.extent[0]);
  run(in, KATT_TABLE(embedding::forward_variants), args, call);
}

void embedding_backward(Object dout, Object ids, Object dweight, const Call& call) {
  Arrays in("embedding");
  embedding::BackwardArgs args{.dout = in.rows(dout, "dout"),
                               .dweight = in.tensor<2>(dweight, "dweight")};
  args.ids = in.integers(ids, "ids", args.dout.extent[0]);
  run(in, KATT_TABLE(embedding::backward_variants), args, call);
}

void convert_dtype(Object x, Object out, const Call& call) {
  Arrays in("convert_dtype");
  run(in, KATT_TABLE(convert_dtype::variants),
      convert_dtype::ForwardArgs{.x = in.rows(x, "x"), .out = in.rows(out, "out")}, call);
}

/// The packed weight of a ternary layer in bytes of Python's.
ternary_linear::PackedTernary packed_weight(Arrays& in, Object packed, int digits_per_byte,
                                            std::int64_t out_features, std::int64_t in_features) {
  using ternary_linear::PackFormat;
  if (digits_per_byte != 4 && digits_per_byte != 5) {
    in.refuse("weights_per_byte", std::to_string(digits_per_byte), "4 or 5");
  }
  const PackFormat format = digits_per_byte == 4 ? PackFormat::two_bit : PackFormat::five_per_byte;
  const std::size_t bytes = ternary_linear::packed_bytes(format, out_features, in_features);
  return {.data = reinterpret_cast<std::byte*>(
              in.bytes(packed, "packed", static_cast<std::int64_t>(bytes))),
          .format = format,
          .out_features = out_features,
          .in_features = in_features};
}

std::size_t ternary_packed_bytes(int digits_per_byte, std::int64_t out_features,
                                 std::int64_t in_features) {
  Arrays in("ternary_linear");
  const nb::none none;
  return ternary_linear::packed_bytes(
      packed_weight(in, none, digits_per_byte, out_features, in_features).format, out_features,
      in_features);
}

void ternary_pack(Object weight, Object packed, int digits_per_byte, int threads) {
  Arrays in("ternary_linear");
  const TensorRef<2> from = in.tensor<2>(weight, "weight");
  const auto to = packed_weight(in, packed, digits_per_byte, from.extent[0], from.extent[1]);
  Runtime::get().run(in.place(), threads, [&](const auto& exec, const auto& workspace) {
    ternary_linear::pack(exec, from, to,
                         workspace(ternary_linear::pack_workspace_bytes(to.out_features)));
  });
}

void ternary_dequantise(Object packed, Object out, int digits_per_byte, int threads) {
  Arrays in("ternary_linear");
  const TensorRef<2> to = in.tensor<2>(out, "out");
  const auto from = packed_weight(in, packed, digits_per_byte, to.extent[0], to.extent[1]);
  Runtime::get().run(in.place(), threads, [&](const auto& exec, const auto&) {
    ternary_linear::dequantise(exec, from, 0, to);
  });
}

void ternary_linear_forward(Object x, Object packed, Object dense, Object out, int digits_per_byte,
                            const Call& call) {
  Arrays in("ternary_linear");
  ternary_linear::ForwardArgs args{
      .x = in.rows(x, "x"), .dense = in.tensor<2>(dense, "dense"), .out = in.rows(out, "out")};
  args.packed = packed_weight(in, packed, digits_per_byte, args.out_features(), args.in_features());
  run(in, KATT_TABLE(ternary_linear::forward_variants), args, call);
}

void ternary_linear_backward(Object dout, Object x, Object packed, Object dense, Object dx,
                             Object dweight, int digits_per_byte, const Call& call) {
  Arrays in("ternary_linear");
  ternary_linear::BackwardArgs args{.x = in.rows(x, "x"),
                                    .dout = in.rows(dout, "dout"),
                                    .dense = in.tensor<2>(dense, "dense"),
                                    .dx = in.rows(dx, "dx"),
                                    .dweight = in.tensor<2>(dweight, "dweight")};
  args.packed = packed_weight(in, packed, digits_per_byte, args.out_features(), args.in_features());
  run(in, KATT_TABLE(ternary_linear::backward_variants), args, call);
}

}  // namespace

void bind_operators(nb::module_& m) {
  const auto arg = [](const char* name) { return nb::arg(name); };
  // Arguments that may be None: optional ones, and numbers (Arrays reports that None is not a
  // number).
  const auto optional = [](const char* name) { return nb::arg(name).none(); };
  m.def("rmsnorm_forward", rmsnorm_forward, arg("x"), arg("weight"), optional("residual"),
        optional("out"), optional("residual_out"), optional("out_q"), optional("out_q_scale"),
        optional("eps"), arg("call"));
  m.def("rmsnorm_backward", rmsnorm_backward, arg("dout"), arg("x"), arg("weight"),
        optional("dresidual_out"), arg("dx"), arg("dweight"), optional("eps"), arg("call"));
  m.def("layernorm_forward", layernorm_forward, arg("x"), arg("weight"), arg("bias"), arg("out"),
        optional("eps"), arg("call"));
  m.def("layernorm_backward", layernorm_backward, arg("dout"), arg("x"), arg("weight"), arg("dx"),
        arg("dweight"), arg("dbias"), optional("eps"), arg("call"));
  m.def("softmax_forward", softmax_forward);
  m.def("softmax_backward", softmax_backward);
  m.def("swiglu_forward", swiglu_forward);
  m.def("swiglu_backward", swiglu_backward);
  m.def("swiglu_mlp_forward", swiglu_mlp_forward);
  m.def("swiglu_mlp_backward", swiglu_mlp_backward);
  m.def("linear_forward", linear_forward, arg("x"), arg("weight"), optional("bias"), arg("out"),
        arg("call"));
  m.def("linear_backward", linear_backward, arg("dout"), arg("x"), arg("weight"), optional("dx"),
        optional("dweight"), optional("dbias"), arg("call"));
  m.def("embedding_forward", embedding_forward);
  m.def("embedding_backward", embedding_backward);
  m.def("convert_dtype", convert_dtype);
  m.def("ternary_packed_bytes", ternary_packed_bytes);
  m.def("ternary_pack", ternary_pack);
  m.def("ternary_dequantise", ternary_dequantise);
  m.def("ternary_linear_forward", ternary_linear_forward, arg("x"), optional("packed"),
        optional("dense"), arg("out"), arg("weights_per_byte"), arg("call"));
  m.def("ternary_linear_backward", ternary_linear_backward, arg("dout"), arg("x"),
        optional("packed"), optional("dense"), arg("dx"), arg("dweight"), arg("weights_per_byte"),
        arg("call"));
}

}  // namespace katt::python
