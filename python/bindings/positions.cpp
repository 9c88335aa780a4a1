#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "ops/attention/attention.hpp"
#include "ops/rope/rope.hpp"
#include "runtime.hpp"

namespace katt::python {
namespace {

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

void bind_positions(nb::module_& m) {
  m.def("alibi_slopes", attention::alibi_slopes, nb::arg("heads"));
  m.def("rope_cache", rope_cache, nb::arg("cache"), nb::arg("theta").none(),
        nb::arg("scaling").none(), nb::arg("f32_angles"));
}

}  // namespace katt::python
