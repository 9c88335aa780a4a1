#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

/// The device in software: memory, and kernels that an interpreter of PTX executes (interpreter/).
/// The libraries that take the place of CUDA's (runtime/, libraries/) use nothing else of it.
namespace softcuda {

/// What a kernel did wrong, in one line with the kernel, block, thread and line of the PTX. The
/// runtime prints it and returns its error from every later call.
struct DeviceFault : std::runtime_error {
  int cuda_error;
  DeviceFault(int error, const std::string& what) : std::runtime_error(what), cuda_error(error) {}
};

/// Memory of the device, aligned to 256 bytes and filled with 0xFF. The host faults at its address.
/// Returns 0 when none is left.
std::uint64_t device_malloc(std::size_t bytes);
/// Returns false when the address is not the start of a live allocation.
bool device_free(std::uint64_t address);
/// Whether the address is one of the device's, allocated or not.
bool is_device(std::uint64_t address);
/// Where the host reaches the bytes at an address. Throws DeviceFault unless they lie in one live
/// allocation, or in one piece of registered host memory.
void* reach(std::uint64_t address, std::size_t bytes);
/// Pinned or managed memory: kernels may use it, too.
void register_host(void* pointer, std::size_t bytes);
void unregister_host(void* pointer);
std::size_t device_bytes_live();
std::size_t device_bytes_total();

struct Module;
/// Parses PTX (up to sm_90a, as nvcc 13 writes it) and gives its variables memory and their initial
/// values. The body of a kernel is decoded at the kernel's first launch.
Module* load_module(const std::string& ptx);
/// Address and size of a .global or .const variable; address 0: there is none.
struct Variable {
  std::uint64_t address;
  std::size_t bytes;
};
Variable find_variable(Module*, const std::string& mangled_name);

struct KernelInfo {
  std::vector<std::size_t> parameter_offset;  ///< in the parameter space, by PTX's alignment rules
  std::vector<std::size_t> parameter_bytes;
  std::size_t parameter_total;
  std::size_t static_shared_bytes;
  int max_threads;  ///< .maxntid, or 1024
  int registers;    ///< an estimate
};
bool has_kernel(Module*, const std::string& mangled_name);
const KernelInfo& kernel_info(Module*, const std::string& mangled_name);

struct Dim3 {
  unsigned x, y, z;
};
/// Executes a grid. `parameters` is the packed parameter space. Throws DeviceFault.
void launch(Module*, const std::string& mangled_name, Dim3 grid, Dim3 block,
            std::size_t dynamic_shared_bytes, const std::vector<std::byte>& parameters);

/// What was executed since the start: launches, and instructions of warps by opcode.
std::string statistics();
/// With SOFTCUDA_BANKS, a line for every kernel that used shared memory, and under it the lines of its
/// PTX whose accesses met bank conflicts; else "".
std::string bank_conflicts();

}  // namespace softcuda
