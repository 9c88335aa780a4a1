#pragma once

/// Checks of the process's environment, so that no library aborts, crashes or waits for ever.
namespace katt::impl {

/// Throws InputError for a Kokkos variable with which Kokkos would abort the program. A program
/// that links this function also refuses, before main() begins, the values with which OpenMP and
/// OpenBLAS would crash or hang: these libraries read them when they are loaded.
void check_surroundings();

/// True when the user asked for Kokkos' description of itself, KOKKOS_PRINT_CONFIGURATION.
[[nodiscard]] bool wants_kokkos_configuration();

}  // namespace katt::impl
