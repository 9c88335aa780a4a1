// The functions of CUDA's driver that Kokkos calls, found when they are called: linked with libcuda.so.1, the module
// could not be imported on a machine without NVIDIA's driver.
#if defined(KATT_HAS_CUDA)

#include <cuda.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace {

template <class Function>
Function* driver_function(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) {
    throw std::runtime_error(std::string("CUDA's driver: libcuda.so.1 or its ") + name +
                             " is missing");
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

// cuda.h gives some functions the name of their latest version, by macros that are expanded here, too.
#define KATT_NAME_OF(function) #function
#define KATT_DRIVER_CALL(function, ...)                                                  \
  static auto* const call = driver_function<decltype(function)>(KATT_NAME_OF(function)); \
  return call(__VA_ARGS__)

extern "C" {

CUresult CUDAAPI cuStreamGetCtx(CUstream stream, CUcontext* context) {
  KATT_DRIVER_CALL(cuStreamGetCtx, stream, context);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  KATT_DRIVER_CALL(cuCtxPushCurrent, context);
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) { KATT_DRIVER_CALL(cuCtxGetDevice, device); }

}  // extern "C"

#endif
