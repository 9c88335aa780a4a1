#pragma once

#include <cstddef>
#include <stdexcept>

#include "place.hpp"

#if defined(KATT_HAS_CUDA)
#include <map>
#include <memory>
#include <utility>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"
#endif

/// Devices of CUDA, for arrays that lie there.
namespace katt::python {

/// CUDA's error of a call, or of an earlier call whose work has failed since: RuntimeError in
/// Python.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// New memory of a device; free_on() frees it. Throws DeviceError. Needs no Kokkos.
[[nodiscard]] void* allocate_on(int device, std::size_t bytes);
void free_on(int device, void* memory) noexcept;

#if defined(KATT_HAS_CUDA)

/// Selects a device for this thread's CUDA calls while the object lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

/// Kokkos on the streams of callers. Kokkos' CUDA backend starts with the first array of a device, not with Kokkos: a
/// program that computes on the CPU needs no device, and none of its memory.
class Devices {
 public:
  /// Before Kokkos starts.
  static void postpone();

  /// Calls f(exec, workspace) on the stream of a place. Errors of Kokkos and CUDA become a
  /// DeviceError.
  template <class F>
  void run(const Place& place, F&& f) {
    const CurrentDevice current(place.device);
    Stream& stream = at(place);
    const auto memory = [&](std::size_t bytes) { return stream.workspace(bytes); };
    try {
      f(std::as_const(stream.exec), memory);
    } catch (...) {
      rethrow(place);
    }
    finish(place, stream);
  }

  /// Before Kokkos ends. Returns false when a fault of a kernel has left CUDA unusable: Kokkos
  /// would then abort the process.
  [[nodiscard]] bool stop();

 private:
  struct Stream {
    Stream(const Place& place, Kokkos::Cuda instance);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    /// Memory that belongs to this call: work in a stream is done in order, so that one memory serves all its calls.
    Workspace workspace(std::size_t bytes);

    int device;
    Kokkos::Cuda exec;
    void* memory = nullptr;
    std::size_t bytes = 0;
  };

  Stream& at(const Place& place);
  void start(int device);
  [[noreturn]] static void rethrow(const Place& place);
  static void finish(const Place& place, Stream& stream);

  std::map<std::pair<int, void*>, std::unique_ptr<Stream>> streams_;
};

#endif

}  // namespace katt::python
