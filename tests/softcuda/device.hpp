#pragma once
// The contract between the two halves of softcuda, a CUDA device in software: runtime.cpp stands in for libcudart,
// libcuda and cuBLAS(Lt) and calls what is declared here; interpreter*.cpp executes PTX.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace softcuda {

/// What a kernel did wrong: out of bounds, misaligned, deadlock, an instruction that is not implemented …; one line with
/// kernel, block, thread and PTX line. The runtime prints it and returns it as a sticky cudaErrorIllegalAddress (700) or
/// cudaErrorLaunchFailure (719).
struct DeviceFault : std::runtime_error {
  int cuda_error;
  DeviceFault(int error, const std::string& what) : std::runtime_error(what), cuda_error(error) {}
};

// ---- Memory (memory.cpp). Device memory is one arena from a memfd that is mapped twice: at the device address, where every access by
// the host faults (PROT_NONE), and at a second place through which runtime and interpreter reach it.
std::uint64_t device_malloc(
    std::size_t bytes);                   ///< 256-byte aligned, filled with 0xFF; 0 when full
bool device_free(std::uint64_t address);  ///< false: not the start of a live allocation
bool is_device(std::uint64_t address);    ///< inside the arena (live or not)
/// The bytes [address, address + bytes) through the second mapping; throws DeviceFault unless they lie in one live
/// allocation, or in host memory registered by register_host (pinned, managed).
void* reach(std::uint64_t address, std::size_t bytes);
void register_host(void* pointer,
                   std::size_t bytes);  ///< pinned or managed memory, which kernels may use too
void unregister_host(void* pointer);
std::size_t device_bytes_live();
std::size_t device_bytes_total();  ///< SOFTCUDA_MEMORY_MIB, default 4096

// ---- Modules and kernels (interpreter).
struct Module;
/// Parses PTX text (sm_90a, as nvcc 13 writes it). Cheap: bodies of kernels are decoded at their first launch.
/// Global and constant variables are given device memory and their initial values.
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
  int registers;    ///< an estimate is enough (for cudaFuncGetAttributes)
};
bool has_kernel(Module*, const std::string& mangled_name);
const KernelInfo& kernel_info(Module*, const std::string& mangled_name);

struct Dim3 {
  unsigned x, y, z;
};
/// Runs the whole grid and returns when it has ended. `parameters` is the packed parameter space. Throws DeviceFault.
void launch(Module*, const std::string& mangled_name, Dim3 grid, Dim3 block,
            std::size_t dynamic_shared_bytes, const std::vector<std::byte>& parameters);

/// Totals since the start, for SOFTCUDA_STATS=1: launches, warp instructions, by opcode.
std::string statistics();

}  // namespace softcuda
