#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "core/build_info.hpp"
#include "runtime.hpp"

namespace nb = nanobind;

NB_MODULE(_katt, m) {
  using namespace katt::python;
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const katt::InputError& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
  m.def("threads", [] { return Runtime::get().threads(); });
  m.def("most_threads", [] { return Runtime::get().most_threads(); });
  m.def(
      "set_threads", [](int threads) { Runtime::get().set_threads(threads); }, nb::arg("threads"));
  m.def("new_array", new_array, nb::arg("like"), nb::arg("shape"), nb::arg("dtype"));
  m.def("exchange_stream", exchange_stream, nb::arg("stream").none());
#if defined(KATT_HAS_CUDA)
  m.attr("cuda") = true;
#else
  m.attr("cuda") = false;
#endif
  m.attr("version") = katt::build_info().version;
  m.attr("commit") = katt::build_info().commit;
  bind_passes(m);
  bind_rules(m);
  bind_positions(m);
  bind_ternary(m);
  bind_model(m);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { Runtime::get().stop(); }));
}
