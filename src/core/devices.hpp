#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// The devices of the CUDA backend, numbered from 0 as the CUDA runtime shows them to this process
/// (CUDA_VISIBLE_DEVICES selects them). Needs no Kokkos.
namespace katt::devices {

/// Number of devices: 0 in a build without CUDA and on a machine without a device.
[[nodiscard]] int count();

/// Name of a device as the driver reports it, "NVIDIA H100 80GB HBM3". Throws InputError when no
/// device has that number.
[[nodiscard]] std::string name(int device);

/// Capability of a device, 10 · major + minor.
[[nodiscard]] int capability(int device);

/// True when a program compiled for these architectures (nvcc's sm_ numbers, separated by blanks)
/// runs on a device of that capability. Code for 80 runs on 8.0 and, by its PTX, on all later ones;
/// code for 90a on 9.0 alone; code for 100f on later members of its family.
[[nodiscard]] bool runs_on(std::string_view architectures, int capability);

/// The reason why this build cannot run on a device, in one line; empty when it can.
[[nodiscard]] std::string problem(int device);

/// Bytes of its memory: free now, and in total.
struct Memory {
  std::size_t free = 0;
  std::size_t total = 0;
};
[[nodiscard]] Memory memory(int device);

/// The default device of this program, and the call that chooses it. Kokkos gets the same number by
/// Kokkos::InitializationSettings::set_device_id(). One thread chooses, before other threads work.
[[nodiscard]] int chosen();
void choose(int device);

/// The device that holds a piece of memory; -1 for memory of the host, pinned or not.
[[nodiscard]] int of_memory(const void* data);

}  // namespace katt::devices
