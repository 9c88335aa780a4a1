#include "core/devices.hpp"

#include <algorithm>
#include <charconv>

#include "core/error.hpp"

#if defined(KATT_HAS_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace katt::devices {
namespace {

int the_chosen = 0;

#if defined(KATT_HAS_CUDA)
void check(cudaError_t error, int device) {
  if (error == cudaSuccess) return;
  throw InputError("device " + std::to_string(device) + ": " + cudaGetErrorString(error));
}

/// Selects a device for this thread's calls while the object lives.
class Current {
 public:
  explicit Current(int device) {
    check(cudaGetDevice(&before_), device);
    check(cudaSetDevice(device), device);
  }
  ~Current() { (void)cudaSetDevice(before_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
};
#endif

void check_number(int device) {
  const int devices = count();
  if (device >= 0 && device < devices) return;
  throw InputError("device " + std::to_string(device) + ": there is none of that number; " +
                   (devices == 0   ? "no device is visible"
                    : devices == 1 ? "expected 0, the only one"
                                   : "expected 0 to " + std::to_string(devices - 1)));
}

}  // namespace

int count() {
#if defined(KATT_HAS_CUDA)
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
#else
  return 0;
#endif
}

std::string name(int device) {
  check_number(device);
#if defined(KATT_HAS_CUDA)
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), device);
  return properties.name;
#else
  return {};
#endif
}

int capability(int device) {
  check_number(device);
#if defined(KATT_HAS_CUDA)
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), device);
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), device);
  return 10 * major + minor;
#else
  return 0;
#endif
}

bool runs_on(std::string_view architectures, int capability) {
  while (!architectures.empty()) {
    const std::size_t end = std::min(architectures.find(' '), architectures.size());
    const std::string_view one = architectures.substr(0, end);
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
    int number = 0;
    std::from_chars(one.data(), one.data() + one.size(), number);
    const bool runs = one.ends_with('a')   ? capability == number
                      : one.ends_with('f') ? capability >= number && capability / 10 == number / 10
                                           : capability >= number;
    if (runs) return true;
  }
  return false;
}

std::string problem(int device) {
#if defined(KATT_HAS_CUDA)
  const int has = capability(device);
  if (!runs_on(KATT_CUDA_ARCHITECTURES, has)) {
    return "this build is for sm_" KATT_CUDA_ARCHITECTURES ", the device " + name(device) +
           " has the compute capability " + std::to_string(has / 10) + "." +
           std::to_string(has % 10) + " (KATT_CUDA_ARCH; docs/gpu.md)";
  }
#endif
  (void)device;
  return {};
}

Memory memory(int device) {
  check_number(device);
  Memory found;
#if defined(KATT_HAS_CUDA)
  const Current current(device);
  check(cudaMemGetInfo(&found.free, &found.total), device);
#endif
  return found;
}

int chosen() { return the_chosen; }

void choose(int device) {
  check_number(device);
  the_chosen = device;
}

int of_memory(const void* data) {
#if defined(KATT_HAS_CUDA)
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, data) == cudaSuccess &&
      (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged)) {
    return attributes.device;
  }
#endif
  (void)data;
  return -1;
}

}  // namespace katt::devices
