#pragma once

#include <Kokkos_Core.hpp>

#include "plan/plan.hpp"
#include "plan/sweep_file.hpp"
#include "plan/tuning.hpp"
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

/// The plan of a sweep, or a refusal where it is long: a thousand points are as good as a million.
inline void plan(const bench::SweepRequest& request) {
  static_cast<void>(bench::plan_cases(request.entries, request.settings.seed, {}, 1000));
}

}  // namespace katt::test::fuzz
