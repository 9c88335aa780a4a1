#pragma once

#include <Kokkos_Core.hpp>

#include "tests/op/toy_operator.hpp"

namespace katt::test::fuzz {

/// An operator without a kernel, with Kokkos on one thread, because Kokkos knows the backends that
/// can run.
inline const bench::Registry& registry() {
  static bench::Registry registry;
  static const bool filled = [] {
    Kokkos::initialize(
        Kokkos::InitializationSettings().set_num_threads(1).set_disable_warnings(true));
    registry.add(std::make_unique<toy::ToyOperator>());
    return true;
  }();
  static_cast<void>(filled);
  return registry;
}

}  // namespace katt::test::fuzz
