#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/error.hpp"

namespace katt {

/// Where an operation runs: a Kokkos execution space by the name that users type.
enum class Backend : std::uint8_t { openmp, serial, cuda };

inline constexpr std::array<Backend, 3> all_backends{Backend::openmp, Backend::serial,
                                                     Backend::cuda};

/// "openmp", "serial" or "cuda".
constexpr std::string_view name_of(Backend backend) {
  return backend == Backend::openmp ? "openmp" : backend == Backend::serial ? "serial" : "cuda";
}

/// The backend of that name, or nothing.
constexpr std::optional<Backend> backend_from_name(std::string_view name) {
  for (const Backend backend : all_backends) {
    if (name_of(backend) == name) return backend;
  }
  return std::nullopt;
}

template <class Exec>
inline constexpr bool is_host_v =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;

/// The Backend of an execution space.
template <class Exec>
constexpr Backend backend_of() {
#if defined(KOKKOS_ENABLE_SERIAL)
  if constexpr (std::is_same_v<Exec, Kokkos::Serial>) return Backend::serial;
#endif
  return is_host_v<Exec> ? Backend::openmp : Backend::cuda;
}

/// Whether this build contains the backend.
constexpr bool is_built(Backend backend) {
  switch (backend) {
    case Backend::openmp:
#if defined(KOKKOS_ENABLE_OPENMP)
      return true;
#else
      return false;
#endif
    case Backend::serial:
#if defined(KOKKOS_ENABLE_SERIAL)
      return true;
#else
      return false;
#endif
    case Backend::cuda: break;
  }
#if defined(KOKKOS_ENABLE_CUDA)
  return true;
#else
  return false;
#endif
}

/// Calls f(exec) with an execution space instance of the backend; `threads` (0: all) is the number
/// of host threads of an OpenMP instance. Throws InputError where this build lacks the backend.
template <class F>
decltype(auto) visit_backend(Backend backend, int threads, F&& f) {
#if defined(KOKKOS_ENABLE_CUDA)
  if (backend == Backend::cuda) return f(Kokkos::Cuda());
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
  if (backend == Backend::openmp)
    return f(threads > 0 ? Kokkos::OpenMP(threads) : Kokkos::OpenMP());
#endif
#if defined(KOKKOS_ENABLE_SERIAL)
  if (backend == Backend::serial) return f(Kokkos::Serial());
#endif
  (void)threads;
  throw InputError("--backend " + std::string(name_of(backend)) +
                   ": this build does not contain it");
}

}  // namespace katt

/// Expands MACRO(Exec, ...) for every execution space of this build: the one list behind the
/// explicit instantiations of the operators.
#if defined(KOKKOS_ENABLE_CUDA)
#define KATT_FOR_CUDA_(MACRO, ...) MACRO(Kokkos::Cuda __VA_OPT__(, ) __VA_ARGS__)
#else
#define KATT_FOR_CUDA_(MACRO, ...)
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
#define KATT_FOR_OPENMP_(MACRO, ...) MACRO(Kokkos::OpenMP __VA_OPT__(, ) __VA_ARGS__)
#else
#define KATT_FOR_OPENMP_(MACRO, ...)
#endif
#define KATT_FOR_EACH_EXEC(MACRO, ...)               \
  KATT_FOR_OPENMP_(MACRO __VA_OPT__(, ) __VA_ARGS__) \
  KATT_FOR_CUDA_(MACRO __VA_OPT__(, ) __VA_ARGS__)   \
  MACRO(Kokkos::Serial __VA_OPT__(, ) __VA_ARGS__)
