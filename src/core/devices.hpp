#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// The devices of the CUDA backend, numbered from 0 as the CUDA runtime shows them to this process
/// (CUDA_VISIBLE_DEVICES decides which it shows). Needs no Kokkos.
namespace katt::devices {

/// How many there are: 0 in a build without CUDA and on a machine without a device.
[[nodiscard]] int count();

/// Its name as the driver tells it, "NVIDIA H100 80GB HBM3". Throws InputError where there is none
/// of that number.
[[nodiscard]] std::string name(int device);

/// Its capability, 10 · major + minor.
[[nodiscard]] int capability(int device);

/// Whether a program compiled for these architectures, nvcc's sm_ numbers separated by blanks, runs
/// on a device of that capability: that of 80 there and on what came later, by its PTX; that of 90a
/// on 9.0 alone; that of 100f on what came later in its family.
[[nodiscard]] bool runs_on(std::string_view architectures, int capability);

/// Why this build cannot run on a device, in one line; empty where it can.
[[nodiscard]] std::string problem(int device);

/// Bytes of it that are free now, and that it has.
struct Memory {
  std::size_t free = 0;
  std::size_t total = 0;
};
[[nodiscard]] Memory memory(int device);

/// The device that this program works on where nothing else is said, and choosing it. Kokkos is
/// told by Kokkos::InitializationSettings::set_device_id(); one thread, before others work.
[[nodiscard]] int chosen();
void choose(int device);

/// The device that memory lies on; -1 of the host's, pinned or not.
[[nodiscard]] int of_memory(const void* data);

}  // namespace katt::devices
