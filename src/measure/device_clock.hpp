#pragma once

#include <memory>

namespace katt::bench {

/// Time by the clock of the chosen device: CUDA events before and behind the work launched between
/// start() and seconds(), on all streams that wait for the legacy one, as Kokkos' streams do. The
/// host's clock would add the time of a fence, 5 to 20 µs, to runs of 50 µs. Does nothing in a
/// build without CUDA.
class DeviceClock {
 public:
  /// Throws std::runtime_error when a CUDA call fails.
  DeviceClock();
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  void start();
  /// Waits for all work launched since start(). Throws std::runtime_error when it failed.
  [[nodiscard]] double seconds();

 private:
  struct Events;
  std::unique_ptr<Events> events_;
};

}  // namespace katt::bench
