#pragma once

/// What the environment of the process must allow, so that no library aborts, crashes or waits for ever.
namespace katt::impl {

/// Throws InputError for a variable of Kokkos that it would abort the program for. What OpenMP and
/// OpenBLAS would crash or hang with is refused before main() begins, where this function is linked in:
/// they read it when they are loaded.
void check_surroundings();

/// Whether the user asked for Kokkos' own description of itself, KOKKOS_PRINT_CONFIGURATION.
[[nodiscard]] bool wants_kokkos_configuration();

}  // namespace katt::impl
