#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/softcuda/runtime/state.hpp"

// Devices and their properties, which are an H100's.

using namespace softcuda;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = state().devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  CALL("cudaSetDevice");
  if (device < 0 || device >= call.s.devices)
    return call.fail_with(cudaErrorInvalidDevice, text("device %d of %d", device, call.s.devices));
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return device >= 0 && device < state().devices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  *flags = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetLimit(cudaLimit, std::size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit limit) {
  *value = limit == cudaLimitStackSize        ? 1024
           : limit == cudaLimitPrintfFifoSize ? 1 << 20
           : limit == cudaLimitMallocHeapSize ? 8 << 20
                                              : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device < 0 || device >= state().devices)
    return fail(cudaErrorInvalidDevice, text("cudaGetDeviceProperties: device %d", device));
  std::memset(p, 0, sizeof *p);
  std::strcpy(p->name, "softcuda (PTX interpreter)");
  std::memset(&p->uuid, 0x5C + device, sizeof p->uuid);
  p->totalGlobalMem = device_bytes_total();
  p->sharedMemPerBlock = shared_default;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = 9;
  p->minor = 0;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = 132;
  p->canMapHostMemory = 1;
  p->surfaceAlignment = 512;
  p->concurrentKernels = 1;
  p->ECCEnabled = 1;
  p->pciBusID = device + 1;
  p->asyncEngineCount = 3;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = 6144;
  p->l2CacheSize = 50 << 20;
  p->persistingL2CacheMaxSize = 31 << 20;
  p->maxThreadsPerMultiProcessor = 2048;
  p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = 1;
  p->localL1CacheSupported = 1;
  p->sharedMemPerMultiprocessor = shared_per_sm;
  p->regsPerMultiprocessor = 65536;
  p->managedMemory = 1;
  p->concurrentManagedAccess = 1;
  p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = shared_optin;
  p->maxBlocksPerMultiProcessor = 32;
  p->accessPolicyMaxWindowSize = 128 << 20;
  p->reservedSharedMemPerBlock = 1024;
  p->hostRegisterSupported = 1;
  p->memoryPoolsSupported = 1;
  p->clusterLaunch = 1;
  p->unifiedFunctionPointers = 1;
  p->hostNumaId = -1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrTotalConstantMemory: *value = static_cast<int>(p.totalConstMem); break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 3201000; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrIntegrated: *value = 0; break;
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    case cudaDevAttrComputeMode: *value = 0; break;
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    case cudaDevAttrAsyncEngineCount: *value = 3; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
    case cudaDevAttrManagedMemory: *value = 1; break;
    case cudaDevAttrConcurrentManagedAccess: *value = 1; break;
    case cudaDevAttrPageableMemoryAccess: *value = 0; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: *value = 0; break;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  CALL("cudaDeviceSynchronize");
  if (const cudaError_t error = forbid_in_captures(call, false)) return error;
  return run_device(call.s, device_of_thread);
}
cudaError_t cudaDeviceReset() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.unloaded) return cudaErrorCudartUnloading;
  start(s);
  for (auto& stream : s.streams) stream->capture.reset();
  const cudaError_t error = s.sticky == cudaSuccess ? run_everything(s) : s.sticky;
  s.sticky = cudaSuccess;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- The driver's functions, from softcuda's libcuda.so.1.

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  if (!symbol || !function)
    return fail(cudaErrorInvalidValue, "cudaGetDriverEntryPoint: a null pointer");
  Dl_info here{};
  dladdr(reinterpret_cast<void*>(&cudaGetDriverEntryPointByVersion), &here);
  const std::string path = here.dli_fname ? here.dli_fname : "";
  static void* const driver =
      dlopen((path.substr(0, path.rfind('/') + 1) + "libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  *function = driver ? dlsym(driver, symbol) : nullptr;
  if (driver && !*function) *function = dlsym(driver, (std::string(symbol) + "_v2").c_str());
  if (result)
    *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!*function) report(text("cudaGetDriverEntryPoint: %s is not supported by softcuda", symbol));
  return *function || result ? cudaSuccess : cudaErrorSymbolNotFound;
}
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, result);
}

}  // extern "C"
