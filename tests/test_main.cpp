#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include "dist/environment.hpp"
#include "tests/arguments.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  katt::test::arguments().assign(argv + 1, argv + argc);
  const katt::dist::Environment ranks;  // where mpirun started the program
  Kokkos::ScopeGuard kokkos(argc, argv);
  return RUN_ALL_TESTS();
}
