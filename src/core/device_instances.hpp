#pragma once

#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/devices.hpp"
#include "core/error.hpp"
#include "core/execution.hpp"

/// Execution space instances on one device of several.
namespace katt {

/// The device of an instance; -1 for an instance of the host.
template <class Exec>
int device_of(const Exec& exec) {
#if defined(KATT_HAS_CUDA)
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) return exec.cuda_device();
#endif
  (void)exec;
  return -1;
}

#if defined(KATT_HAS_CUDA)
/// Throws InputError when instances cannot work on a device: no device has that number, or its
/// capability is not that of the device that Kokkos was initialised with (Kokkos uses the
/// properties of that one device for all).
inline void check_instances_on(int device) {
  const int usual = Kokkos::Cuda().cuda_device();
  if (devices::capability(device) != devices::capability(usual)) {
    throw InputError("device " + std::to_string(device) + " has the capability " +
                     std::to_string(devices::capability(device)) + ", expected " +
                     std::to_string(devices::capability(usual)) + ", that of device " +
                     std::to_string(usual) + ", to work beside it");
  }
}

/// An instance with a stream of its own on a device. The last copy of the instance destroys the
/// stream. Throws InputError as check_instances_on() does.
inline Kokkos::Cuda instance_on(int device) {
  check_instances_on(device);
  int before = 0;
  KOKKOS_IMPL_CUDA_SAFE_CALL(cudaGetDevice(&before));
  KOKKOS_IMPL_CUDA_SAFE_CALL(cudaSetDevice(device));
  cudaStream_t stream = nullptr;
  KOKKOS_IMPL_CUDA_SAFE_CALL(cudaStreamCreate(&stream));
  Kokkos::Cuda instance(stream, Kokkos::Impl::ManageStream::yes);
  KOKKOS_IMPL_CUDA_SAFE_CALL(cudaSetDevice(before));
  return instance;
}
#endif

}  // namespace katt
