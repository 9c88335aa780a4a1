#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"
#include "runtime.hpp"

namespace katt::python {
namespace {

using Object = nb::handle;

struct Forward {
  using Args = ternary_linear::ForwardArgs;
  template <class Exec>
  static auto& table() {
    return ternary_linear::forward_variants<Exec>();
  }
};
struct Backward {
  using Args = ternary_linear::BackwardArgs;
  template <class Exec>
  static auto& table() {
    return ternary_linear::backward_variants<Exec>();
  }
};

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
  run<Forward>(in, args, call);
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
  run<Backward>(in, args, call);
}

}  // namespace

void bind_ternary(nb::module_& m) {
  const auto arg = [](const char* name) { return nb::arg(name); };
  const auto optional = [](const char* name) { return nb::arg(name).none(); };
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
