#pragma once

#include <nanobind/nanobind.h>

/// The parts of the module katt._katt. Its functions are the passes of the operators on arrays that the caller has
/// allocated, inputs first, outputs next, then numbers, then a Call; an optional array is None. The package's Python
/// functions have the documentation, and allocate.
namespace katt::python {

void bind_attention(nanobind::module_& m);
void bind_operators(nanobind::module_& m);
void bind_losses(nanobind::module_& m);
void bind_model(nanobind::module_& m);

}  // namespace katt::python
