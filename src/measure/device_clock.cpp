#include "measure/device_clock.hpp"

#if defined(KATT_HAS_CUDA)

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "core/devices.hpp"

namespace katt::bench {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

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
  check(cudaSetDevice(devices::chosen()));
  check(cudaEventCreate(&events_->begin));
  check(cudaEventCreate(&events_->end));
}
DeviceClock::~DeviceClock() = default;

void DeviceClock::start() { check(cudaEventRecord(events_->begin, cudaStreamLegacy)); }

double DeviceClock::seconds() {
  check(cudaEventRecord(events_->end, cudaStreamLegacy));
  check(cudaEventSynchronize(events_->end));
  float passed_ms = 0;
  check(cudaEventElapsedTime(&passed_ms, events_->begin, events_->end));
  return 1e-3 * static_cast<double>(passed_ms);
}

}  // namespace katt::bench

#else

namespace katt::bench {

struct DeviceClock::Events {};
DeviceClock::DeviceClock() = default;
DeviceClock::~DeviceClock() = default;
void DeviceClock::start() {}
double DeviceClock::seconds() { return 0; }

}  // namespace katt::bench

#endif
