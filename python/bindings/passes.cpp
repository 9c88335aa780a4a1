#include "passes.hpp"

#include "bindings.hpp"

namespace katt::python {
namespace {

/// A pass for katt/_schema.py: plain data, since what lives as long as Python must not be ours.
nb::dict described(const PassInfo& pass) {
  nb::list tensors;
  for (const TensorInfo& tensor : pass.tensors) {
    tensors.append(nb::make_tuple(tensor.name, nb::tuple(nb::cast(tensor.axes)), tensor.element,
                                  tensor.is_output, tensor.is_dense, tensor.when, tensor.unless,
                                  tensor.is_optional, tensor.is_hidden, tensor.dtype_axis,
                                  tensor.reads, tensor.gradient_of));
  }
  nb::dict made;
  made["op"] = pass.op;
  made["is_backward"] = pass.is_backward;
  made["formula"] = pass.formula;
  made["source"] = pass.source;
  made["tensors"] = tensors;
  made["numbers"] = pass.numbers;
  made["has_tiles"] = pass.has_tiles;
  return made;
}

const std::vector<PassInfo>& known() {
  static const std::vector<PassInfo> all = passes();
  return all;
}

}  // namespace

void bind_passes(nb::module_& m) {
  m.def("passes", [] {
    nb::list all;
    for (const PassInfo& pass : known()) all.append(described(pass));
    return all;
  });
  m.def(
      "run",
      [](std::size_t pass, const nb::tuple& tensors, const nb::tuple& numbers, const Call& call) {
        known()[pass].run(tensors, numbers, call);
      },
      nb::arg("pass_number"), nb::arg("tensors"), nb::arg("numbers"), nb::arg("call"));
}

}  // namespace katt::python
