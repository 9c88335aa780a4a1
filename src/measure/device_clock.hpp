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

  /// Keeps the device busy for lead_s, in which the host launches the work: the first launch on an
  /// idle device takes 3 to 15 µs to arrive, which would count.
  void start();
  /// Waits for all work launched since start(). Throws std::runtime_error when it failed.
  [[nodiscard]] double seconds();

  static constexpr double lead_s = 100e-6;

 private:
  struct Events;
  std::unique_ptr<Events> events_;
};

/// Frequency at which the multiprocessors of the chosen device run now, in Hz, as the driver's
/// library NVML (libnvidia-ml.so.1, loaded at the first call) reports it; NaN where there is none.
[[nodiscard]] double multiprocessor_clock_hz();

}  // namespace katt::bench
