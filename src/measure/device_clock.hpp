#pragma once

#include <memory>

namespace katt::bench {

/// Time by the clock of the chosen device: CUDA events before and behind what is launched between
/// start() and seconds(), on whatever streams that wait for the legacy one, as those of Kokkos do.
/// The host's clock would add what a fence takes, 5 to 20 µs, to runs of 50 µs. Nothing in a build
/// without CUDA.
class DeviceClock {
 public:
  /// Throws std::runtime_error where CUDA does.
  DeviceClock();
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  void start();
  /// Waits for what has been launched since start(). Throws std::runtime_error where it failed.
  [[nodiscard]] double seconds();

 private:
  struct Events;
  std::unique_ptr<Events> events_;
};

}  // namespace katt::bench
