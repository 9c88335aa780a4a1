#pragma once

#include <string>

namespace katt::python {

/// Where the arrays of a call lie: in the host's memory, or in that of a CUDA device, together with the stream on which
/// their library works on them at the time of the call.
struct Place {
  int device = -1;         ///< of CUDA; -1: the host
  void* stream = nullptr;  ///< a cudaStream_t; null is the legacy default stream
  /// Whether the call returns only when its work is done: nobody could say on which stream the results will be read.
  bool waits = false;

  [[nodiscard]] bool on_host() const { return device < 0; }
};

/// "the CPU", "cuda:0".
[[nodiscard]] inline std::string to_text(const Place& place) {
  return place.on_host() ? "the CPU" : "cuda:" + std::to_string(place.device);
}

}  // namespace katt::python
