#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace katt {

/// The Kokkos execution space in which an operation runs, by the name that users type.
enum class Backend : std::uint8_t {
  openmp,  ///< Kokkos::OpenMP, on all threads or on as many as are asked for
  serial,  ///< one thread of the host
  cuda     ///< Kokkos::Cuda
};

/// Every backend, built or not.
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

/// True when this build contains the backend.
constexpr bool is_built(Backend backend) {
#if defined(KATT_HAS_CUDA)
  constexpr bool has_cuda = true;
#else
  constexpr bool has_cuda = false;
#endif
  return has_cuda || backend != Backend::cuda;
}

}  // namespace katt

#if !defined(KATT_BUILDING)
#include "core/execution.hpp"  // for users: katt's own sources name what they need
#endif
