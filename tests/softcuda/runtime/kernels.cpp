#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/softcuda/runtime/state.hpp"

// Kernels: what nvcc's code registers, and launches.

namespace softcuda {

Module* module_of(FatBinary& binary) {
  if (!binary.module && binary.trouble.empty()) {
    try {
      binary.module = load_module(extract_ptx(binary.wrapper));
      binary.registers = extract_registers(binary.wrapper);
    } catch (const std::exception& error) {
      binary.trouble = error.what();
      if (binary.trouble.empty()) binary.trouble = "the module cannot be loaded";
    }
  }
  return binary.module;
}

namespace {

struct CallConfiguration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> configurations;

/// The function of a host stub or of a cudaKernel_t; nullptr after a report.
Kernel* find_function(const Call& call, const void* pointer, cudaError_t& error) {
  State& s = call.s;
  Kernel* function = nullptr;
  if (const auto it = s.functions.find(pointer); it != s.functions.end()) {
    function = it->second.get();
  } else if (s.kernels.count(pointer)) {
    function = static_cast<Kernel*>(const_cast<void*>(pointer));
  }
  if (!function) {
    error = call.fail_with(cudaErrorInvalidDeviceFunction, text("%p is not a kernel", pointer));
    return nullptr;
  }
  Module* const module = module_of(*function->binary);
  if (!module) {
    error = call.fail_with(cudaErrorInvalidPtx, text("%s: %s", function->name.c_str(),
                                                     function->binary->trouble.c_str()));
    return nullptr;
  }
  try {
    if (!has_kernel(module, function->name)) {
      error = call.fail_with(cudaErrorInvalidDeviceFunction,
                             text("the module has no kernel %s", function->name.c_str()));
      return nullptr;
    }
    kernel_info(module, function->name);
  } catch (const std::exception& trouble) {
    error =
        call.fail_with(cudaErrorInvalidPtx, text("%s: %s", function->name.c_str(), trouble.what()));
    return nullptr;
  }
  return function;
}

/// As ptxas counted them; without machine code, the interpreter's estimate within the launch bound.
int registers_of(const Kernel& function, const KernelInfo& info) {
  const auto it = function.binary->registers.find(function.name);
  if (it != function.binary->registers.end() && it->second > 0) return it->second;
  const int most = std::clamp(65536 / std::max(info.max_threads, 1) / 8 * 8, 16, 255);
  return std::clamp(info.registers, 16, most);
}

struct Launch {
  dim3 grid, block;
  std::size_t shared;
};

std::size_t threads_of(const Launch& l) {
  return static_cast<std::size_t>(l.block.x) * l.block.y * l.block.z;
}

bool is_shape_allowed(const Launch& l) {
  const dim3 &grid = l.grid, &block = l.block;
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && threads_of(l) > 0 && grid.x <= 0x7fffffffU &&
         grid.y <= 65535 && grid.z <= 65535 && block.x <= 1024 && block.y <= 1024 &&
         block.z <= 64 && threads_of(l) <= 1024;
}

/// Without cudaFuncSetAttribute, what is left of 48 KiB; with it, no less.
std::size_t allowed_shared(const Kernel& kernel, const KernelInfo& info) {
  const std::size_t left = shared_default - std::min(shared_default, info.static_shared_bytes);
  return std::max(left, static_cast<std::size_t>(std::max(kernel.max_dynamic_shared, 0)));
}

/// What a device would refuse about a launch, or cudaSuccess.
cudaError_t check_launch(const Call& call, const Kernel& kernel, const KernelInfo& info,
                         const Launch& l) {
  const char* const name = kernel.name.c_str();
  const std::size_t threads = threads_of(l), fixed = info.static_shared_bytes;
  if (!is_shape_allowed(l)) {
    return call.fail_with(cudaErrorInvalidConfiguration,
                          text("%s: grid %u x %u x %u, block %u x %u x %u", name, l.grid.x,
                               l.grid.y, l.grid.z, l.block.x, l.block.y, l.block.z));
  }
  if (threads > static_cast<std::size_t>(info.max_threads)) {
    return call.fail_with(cudaErrorInvalidValue, text("%s: a block of %zu threads, launch bound %d",
                                                      name, threads, info.max_threads));
  }
  if (l.shared > allowed_shared(kernel, info)) {
    return call.fail_with(cudaErrorInvalidValue,
                          text("%s: %zu bytes of dynamic shared memory, %zu allowed (static: %zu)",
                               name, l.shared, allowed_shared(kernel, info), fixed));
  }
  if (l.shared + fixed > shared_optin) {
    return call.fail_with(cudaErrorInvalidValue,
                          text("%s: %zu + %zu bytes of shared memory, a block may have %zu", name,
                               l.shared, fixed, shared_optin));
  }
  const int registers = registers_of(kernel, info);
  const std::size_t warps = (threads + 31) / 32;
  if (warps * static_cast<std::size_t>((registers * 32 + 255) / 256 * 256) > 65536) {
    return call.fail_with(cudaErrorLaunchOutOfResources,
                          text("%s: %zu warps of %d registers a thread", name, warps, registers));
  }
  return cudaSuccess;
}

/// The parameter space of a launch.
cudaError_t pack(const Call& call, const Kernel& kernel, const KernelInfo& info, void** arguments,
                 std::vector<std::byte>& parameters) {
  parameters.resize(info.parameter_total);
  for (std::size_t i = 0; i < info.parameter_offset.size(); ++i) {
    if (!arguments || !arguments[i]) {
      return call.fail_with(cudaErrorInvalidValue,
                            text("%s: argument %zu is missing", kernel.name.c_str(), i));
    }
    std::memcpy(parameters.data() + info.parameter_offset[i], arguments[i],
                info.parameter_bytes[i]);
  }
  return cudaSuccess;
}

void execute_kernel(const Kernel& kernel, const Launch& l,
                    const std::vector<std::byte>& parameters) {
  static const char* const skipped = std::getenv("SOFTCUDA_SKIP");
  if (skipped && *skipped && kernel.name.find(skipped) != std::string::npos) return;
  launch(kernel.binary->module, kernel.name, {l.grid.x, l.grid.y, l.grid.z},
         {l.block.x, l.block.y, l.block.z}, l.shared, parameters);
}

cudaError_t launch_kernel(const Call& call, const void* pointer, const Launch& l, void** arguments,
                          cudaStream_t handle) {
  cudaError_t error = cudaSuccess;
  const Kernel* const kernel = find_function(call, pointer, error);
  if (!kernel) return error;
  Stream* const stream = find_stream(call.s, call.api, handle, error);
  if (!stream) return error;
  if (stream->device != device_of_thread) {
    return call.fail_with(cudaErrorInvalidResourceHandle,
                          text("%s: the stream is of device %d, the current device is %d",
                               kernel->name.c_str(), stream->device, device_of_thread));
  }
  const KernelInfo& info = kernel_info(kernel->binary->module, kernel->name);
  error = check_launch(call, *kernel, info, l);
  if (error != cudaSuccess) return error;
  std::vector<std::byte> parameters;
  error = pack(call, *kernel, info, arguments, parameters);
  if (error != cudaSuccess) return error;
  submit(call.s, *stream,
         text("kernel %s <<<(%u,%u,%u),(%u,%u,%u),%zu>>>", kernel->name.c_str(), l.grid.x, l.grid.y,
              l.grid.z, l.block.x, l.block.y, l.block.z, l.shared),
         [=] { execute_kernel(*kernel, l, parameters); });
  return call.s.sticky;
}

}  // namespace
}  // namespace softcuda

using namespace softcuda;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.binaries.push_back(std::make_unique<FatBinary>());
  s.binaries.back()->wrapper = wrapper;
  return reinterpret_cast<void**>(s.binaries.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  auto function = std::make_unique<Kernel>();
  function->binary = reinterpret_cast<FatBinary*>(handle);
  function->name = name;
  s.kernels.insert(function.get());
  s.functions[host] = std::move(function);
}
void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, std::size_t, int,
                       int) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.symbols[host] = {reinterpret_cast<FatBinary*>(handle), name};
}
void __cudaRegisterManagedVar(void**, void**, char*, const char* name, int, std::size_t, int, int) {
  report(text("__cudaRegisterManagedVar: %s: managed variables are not supported", name));
}
void __cudaRegisterHostVar(void**, const char* name, char*, std::size_t) {
  report(text("__cudaRegisterHostVar: %s: not supported", name));
}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  if (configurations.empty())
    return fail(cudaErrorMissingConfiguration, "__cudaPopCallConfiguration: there is none");
  const CallConfiguration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto it = s.functions.find(host);
  if (it == s.functions.end()) {
    *kernel = nullptr;
    return fail(cudaErrorInvalidDeviceFunction, text("__cudaGetKernel: %p is not a kernel", host));
  }
  *kernel = reinterpret_cast<cudaKernel_t>(it->second.get());
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  CALL("launch");
  return launch_kernel(call, kernel, {grid, block, shared}, arguments, stream);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                    std::size_t shared, cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared,
                            stream ? stream : cudaStreamPerThread);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t stream) {
  CALL("cudaLaunchKernel");
  return launch_kernel(call, function, {grid, block, shared}, arguments, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                        void** arguments, std::size_t shared, cudaStream_t stream) {
  CALL("cudaLaunchCooperativeKernel");
  return launch_kernel(call, function, {grid, block, shared}, arguments, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  CALL("cudaLaunchKernelExC");
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension &&
        a.val.clusterDim.x * a.val.clusterDim.y * a.val.clusterDim.z > 1) {
      return call.fail_with(cudaErrorNotSupported,
                            "clusters of blocks are not supported by softcuda");
    }
  }
  return launch_kernel(call, function,
                       {config->gridDim, config->blockDim, config->dynamicSmemBytes}, arguments,
                       config->stream);
}
cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  return __cudaGetKernel(kernel, host);
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* host) {
  return __cudaGetKernel(reinterpret_cast<cudaKernel_t*>(function), host);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* pointer) {
  CALL("cudaFuncGetAttributes");
  cudaError_t error = cudaSuccess;
  const Kernel* const function = find_function(call, pointer, error);
  if (!function) return error;
  const KernelInfo& info = kernel_info(function->binary->module, function->name);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->sharedSizeBytes = info.static_shared_bytes;
  attributes->maxThreadsPerBlock = info.max_threads;
  attributes->numRegs = registers_of(*function, info);
  attributes->ptxVersion = 90;
  attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(allowed_shared(*function, info));
  attributes->preferredShmemCarveout = -1;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* pointer, cudaFuncAttribute attribute, int value) {
  CALL("cudaFuncSetAttribute");
  cudaError_t error = cudaSuccess;
  Kernel* const function = find_function(call, pointer, error);
  if (!function) return error;
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    const KernelInfo& info = kernel_info(function->binary->module, function->name);
    if (value < 0 || static_cast<std::size_t>(value) + info.static_shared_bytes > shared_optin) {
      return call.fail_with(
          cudaErrorInvalidValue,
          text("%s: %d bytes of dynamic shared memory (static: %zu), a block may have %zu",
               function->name.c_str(), value, info.static_shared_bytes, shared_optin));
    }
    function->max_dynamic_shared = value;
  } else if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
    if (value < -1 || value > 100)
      return call.fail_with(cudaErrorInvalidValue, text("carve-out %d", value));
  }
  return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaFuncGetName(const char** name, const void* pointer) {
  CALL("cudaFuncGetName");
  cudaError_t error = cudaSuccess;
  const Kernel* const function = find_function(call, pointer, error);
  if (function) *name = function->name.c_str();
  return error;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* pointer,
                                                                   int block, std::size_t shared,
                                                                   unsigned) {
  CALL("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  cudaError_t error = cudaSuccess;
  const Kernel* const function = find_function(call, pointer, error);
  if (!function) return error;
  const KernelInfo& info = kernel_info(function->binary->module, function->name);
  *blocks = 0;
  if (block <= 0) return call.fail_with(cudaErrorInvalidValue, "block size 0");
  if (block > info.max_threads) return cudaSuccess;
  const int warps = (block + 31) / 32;
  const std::size_t used = (info.static_shared_bytes + shared + 1024 + 127) / 128 * 128;
  if (info.static_shared_bytes + shared > shared_optin) return cudaSuccess;
  *blocks = std::min({32, 64 / warps, 65536 / (registers_of(*function, info) * 32 * warps),
                      static_cast<int>(shared_per_sm / used)});
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* pointer,
                                                          int block, std::size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, pointer, block, shared, 0);
}

}  // extern "C"
