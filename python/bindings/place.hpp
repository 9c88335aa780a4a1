#pragma once

#include <string>

namespace katt::python {

/// The place of the arrays of a call: the memory of the host or of a CUDA device, with the stream
/// on which their library works on them at the time of the call.
struct Place {
  int device = -1;         ///< number of the CUDA device; -1: the host
  void* stream = nullptr;  ///< a cudaStream_t; null is the legacy default stream
  /// True: the call returns when its work is done, because the stream of the results' readers is
  /// unknown.
  bool waits = false;

  [[nodiscard]] bool on_host() const { return device < 0; }
};

/// "the CPU", "cuda:0".
[[nodiscard]] inline std::string to_text(const Place& place) {
  return place.on_host() ? "the CPU" : "cuda:" + std::to_string(place.device);
}

}  // namespace katt::python
