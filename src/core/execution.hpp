#pragma once

#include <string>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/backend.hpp"
#include "core/error.hpp"

/// Backends as Kokkos execution spaces.
namespace katt {

/// True when the host can read the memory of the execution space.
template <class Exec>
inline constexpr bool is_host_v =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;

#if defined(KOKKOS_ENABLE_OPENMP)
/// The execution space of both host backends. Host kernels are compiled for this one only. Inside a
/// parallel region of your own make the instance there: a kernel on one that was made outside of it
/// takes the thread's number for one of its own, and writes behind its workspace.
using Host = Kokkos::OpenMP;
/// An instance with one thread: the backend `serial`. A program whose own execution space is
/// Kokkos::Serial passes this instance to an operator.
inline Host serial_host() { return Host(1); }
#else
/// The execution space of host backends in a build without OpenMP.
using Host = Kokkos::Serial;
/// The one instance of a build without OpenMP.
inline Host serial_host() { return {}; }
#endif

/// The Backend of an execution space; for Host the one that may have many threads.
template <class Exec>
constexpr Backend backend_of() {
  if constexpr (!is_host_v<Exec>) return Backend::cuda;
#if defined(KOKKOS_ENABLE_SERIAL)
  if constexpr (std::is_same_v<Exec, Kokkos::Serial>) return Backend::serial;
#endif
  return Backend::openmp;
}

/// Calls f(exec) with an execution space instance of the backend; `threads` (0: all) is the number
/// of host threads when the backend is openmp. Throws InputError when this build lacks the backend.
template <class F>
decltype(auto) visit_backend(Backend backend, int threads, F&& f) {
#if defined(KATT_HAS_CUDA)
  if (backend == Backend::cuda) return f(Kokkos::Cuda());
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
  if (backend == Backend::openmp)
    return f(threads > 0 ? Kokkos::OpenMP(threads) : Kokkos::OpenMP());
#endif
  if (backend == Backend::serial) return f(serial_host());
  (void)threads;
  throw InputError("--backend " + std::string(name_of(backend)) +
                   ": this build does not contain it");
}

}  // namespace katt

/// The part of KATT_FOR_EACH_EXEC for a device.
#if defined(KATT_HAS_CUDA)
#define KATT_FOR_CUDA_(MACRO, ...) MACRO(Kokkos::Cuda __VA_OPT__(, ) __VA_ARGS__)
#else
/// The part of KATT_FOR_EACH_EXEC for a device: nothing in this build.
#define KATT_FOR_CUDA_(MACRO, ...)
#endif
/// Expands MACRO(Exec, ...) for every execution space of this build: the one list behind the
/// explicit instantiations of the operators.
#define KATT_FOR_EACH_EXEC(MACRO, ...)         \
  MACRO(katt::Host __VA_OPT__(, ) __VA_ARGS__) \
  KATT_FOR_CUDA_(MACRO __VA_OPT__(, ) __VA_ARGS__)
