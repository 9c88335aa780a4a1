#include "measure/device_clock.hpp"

#include <limits>

#if defined(KATT_HAS_CUDA)

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

#include <Kokkos_Core.hpp>

#include "core/devices.hpp"

namespace katt::bench {
namespace {

void check_clock(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// Keeps a multiprocessor busy.
__global__ void stay_busy(std::uint64_t nanoseconds) {
  const auto now = [] {
    std::uint64_t time = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  const std::uint64_t begin = now();
  while (now() - begin < nanoseconds) {
  }
}

/// The functions of NVML that this file calls, as its documentation declares them.
class Nvml {
 public:
  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto init = load<int (*)()>(library, "nvmlInit_v2");
    const auto find =
        load<int (*)(const char*, void**)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
    const auto clock = load<Clock>(library, "nvmlDeviceGetClockInfo");
    char bus[32] = {};
    if (init == nullptr || find == nullptr || clock == nullptr || init() != 0) return;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, devices::chosen()) != cudaSuccess) return;
    if (find(bus, &device_) == 0) clock_ = clock;
  }

  [[nodiscard]] double clock_hz() const {
    constexpr int multiprocessors = 1;  // NVML_CLOCK_SM
    unsigned int mhz = 0;
    if (clock_ == nullptr || clock_(device_, multiprocessors, &mhz) != 0) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    return 1e6 * mhz;
  }

 private:
  using Clock = int (*)(void*, int, unsigned int*);

  template <class Function>
  static Function load(void* library, const char* name) {
    return reinterpret_cast<Function>(dlsym(library, name));
  }

  void* device_ = nullptr;
  Clock clock_ = nullptr;
};

}  // namespace

struct DeviceClock::Events {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;

  ~Events() {
    for (cudaEvent_t event : {begin, end}) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
  }
};

DeviceClock::DeviceClock() : events_(std::make_unique<Events>()) {
  check_clock(cudaSetDevice(devices::chosen()));
  check_clock(cudaEventCreate(&events_->begin));
  check_clock(cudaEventCreate(&events_->end));
}
DeviceClock::~DeviceClock() = default;

void DeviceClock::start() {
  stay_busy<<<1, 1, 0, cudaStreamLegacy>>>(static_cast<std::uint64_t>(1e9 * lead_s));
  check_clock(cudaGetLastError());
  check_clock(cudaEventRecord(events_->begin, cudaStreamLegacy));
}

double DeviceClock::seconds() {
  check_clock(cudaEventRecord(events_->end, cudaStreamLegacy));
  check_clock(cudaEventSynchronize(events_->end));
  float passed_ms = 0;
  check_clock(cudaEventElapsedTime(&passed_ms, events_->begin, events_->end));
  return 1e-3 * static_cast<double>(passed_ms);
}

double multiprocessor_clock_hz() {
  static const Nvml nvml;
  return nvml.clock_hz();
}

}  // namespace katt::bench

#else

namespace katt::bench {

struct DeviceClock::Events {};
DeviceClock::DeviceClock() = default;
DeviceClock::~DeviceClock() = default;
void DeviceClock::start() {}
double DeviceClock::seconds() { return 0; }
double multiprocessor_clock_hz() { return std::numeric_limits<double>::quiet_NaN(); }

}  // namespace katt::bench

#endif
