#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <Kokkos_Core.hpp>

#include "core/status.hpp"

#if defined(KATT_HAS_CUDA)

/// Launches of kernels that need more shared memory than the 48 KiB that Kokkos gives a team (4.5
/// does not raise the limit of a kernel), on the stream of a Kokkos instance.
namespace katt::tile {

/// The threads and the shared memory of a block are template arguments so that scripts/kernel_table
/// reads them in the kernel's name.
template <int Threads, int SharedBytes, class Block, class Functor>
__global__ void __launch_bounds__(Threads, Functor::blocks_per_multiprocessor)
    run_blocks(const __grid_constant__ Functor functor) {
  extern __shared__ __align__(1024) std::byte shared[];
  Block block(shared);
  functor.run(block, static_cast<std::int64_t>(blockIdx.x));
}

/// ok, or skipped when a block of the device cannot have this much shared memory. The reason begins
/// with `what`: nothing, or the kernel that needs it and a space.
inline Status cuda_shared_memory_supports(const Kokkos::Cuda& exec, std::size_t bytes,
                                          const std::string& what = "") {
  const std::size_t available = exec.cuda_device_prop().sharedMemPerBlockOptin;
  if (bytes <= available) return Status::ok();
  return Status::skipped(what + "needs " + std::to_string(bytes) +
                         " bytes of shared memory, a block of this device can have " +
                         std::to_string(available));
}

/// ok, or skipped when the device is older than compute capability `major`.0, lacks the shared
/// memory for a block of the functor, or the grid would be too long.
template <class Functor>
Status cuda_supports(const Kokkos::Cuda& exec, int major, std::int64_t blocks) {
  const cudaDeviceProp& device = exec.cuda_device_prop();
  if (device.major < major) {
    return Status::skipped("needs compute capability " + std::to_string(major) +
                           ".0, the device has " + std::to_string(device.major) + "." +
                           std::to_string(device.minor));
  }
  if (blocks > 0x7FFFFFFF) {
    return Status::skipped("needs " + std::to_string(blocks) + " blocks, more than 2147483647");
  }
  return cuda_shared_memory_supports(exec, Functor::shared_bytes);
}

/// Throws std::runtime_error when a call of the CUDA runtime failed.
inline void cuda_check(cudaError_t result, const std::string& label) {
  if (result != cudaSuccess) throw std::runtime_error(label + ": " + cudaGetErrorString(result));
}

/// Sets the most shared memory that launches of a kernel may request on the current device, once:
/// the call takes the host about as long as a launch.
template <auto Kernel>
cudaError_t cuda_allow_shared_memory(int device, std::size_t most) {
  static std::atomic<std::uint64_t> allowed{0};  // a bit a device
  const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
  if ((allowed.load() & bit) != 0) return cudaSuccess;
  const cudaError_t result = cudaFuncSetAttribute(
      Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most));
  if (result == cudaSuccess) allowed |= bit;
  return result;
}

/// Launches a kernel on the stream of `exec`, under `label` for Kokkos Tools. `shared_limit`: the
/// most shared memory that any launch of this kernel requests on this device. Throws
/// std::runtime_error when CUDA refuses the launch.
template <auto Kernel, class Functor>
void cuda_launch_kernel(const Kokkos::Cuda& exec, const std::string& label, std::int64_t blocks,
                        int threads, std::size_t shared_bytes, std::size_t shared_limit,
                        const Functor& functor) {
  if (blocks == 0) return;
  std::uint64_t id = 0;
  Kokkos::Tools::beginParallelFor(label, Kokkos::Tools::Experimental::device_id(exec), &id);
  cuda_check(cudaSetDevice(exec.cuda_device()), label);
  cuda_check(cuda_allow_shared_memory<Kernel>(exec.cuda_device(), shared_limit), label);
  Kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, exec.cuda_stream()>>>(functor);
  cuda_check(cudaGetLastError(), label);
  Kokkos::Tools::endParallelFor(id);
}

/// Launches `blocks` blocks of the functor; as cuda_launch_kernel().
template <class Block, class Functor>
void cuda_launch(const Kokkos::Cuda& exec, const std::string& label, std::int64_t blocks,
                 const Functor& functor) {
  cuda_launch_kernel<&run_blocks<Functor::threads, Functor::shared_bytes, Block, Functor>>(
      exec, label, blocks, Functor::threads, Functor::shared_bytes, Functor::shared_bytes, functor);
}

}  // namespace katt::tile

#endif
