#include <gtest/gtest.h>

#include <cstdlib>

#include <Kokkos_Core.hpp>

#include "ranks/environment.hpp"
#include "tests/arguments.hpp"
#include "tests/device.hpp"

int main(int argc, char** argv) {
  // Property tests on an emulated device: a few problems each. The user's own setting stays.
  if (katt::test::device_is_emulated()) setenv("RC_PARAMS", "max_success=6", 0);
  testing::InitGoogleTest(&argc, argv);
  katt::test::arguments().assign(argv + 1, argv + argc);
  const katt::ranks::Environment ranks;  // where mpirun started the program
  Kokkos::ScopeGuard kokkos(argc, argv);
  return RUN_ALL_TESTS();
}
