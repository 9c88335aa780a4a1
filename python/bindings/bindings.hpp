#pragma once

#include <nanobind/nanobind.h>

/// The parts of the module katt._katt. Its functions take arrays that the caller has allocated; a missing one is None.
/// The package's Python functions have the documentation, and allocate.
namespace katt::python {

void bind_passes(nanobind::module_& m);
void bind_rules(nanobind::module_& m);
void bind_positions(nanobind::module_& m);
void bind_ternary(nanobind::module_& m);
void bind_model(nanobind::module_& m);

}  // namespace katt::python
