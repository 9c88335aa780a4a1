#pragma once

#if defined(KATT_HAS_CUDA)

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

namespace katt {

/// What a stream has been asked to do once, asked again with one call: a CUDA graph.
class CudaGraph {
 public:
  /// Why this CUDA runtime makes none; empty where it does.
  static std::string refusal();

  /// Calls launch(), whose work is not done but noted: all that it asks of the stream. It must not
  /// allocate, wait or ask another stream. Throws std::runtime_error where the runtime refuses; then
  /// nothing has been done.
  template <class F>
  static CudaGraph capture(cudaStream_t stream, const F& launch) {
    Capture capture(stream);
    launch();
    return capture.end();
  }

  /// Asks the stream, of the same device, for that work, and returns.
  void launch(cudaStream_t stream) const;

 private:
  /// A capture at work; one that is not ended is dropped.
  class Capture {
   public:
    explicit Capture(cudaStream_t stream);
    ~Capture();
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    CudaGraph end();

   private:
    cudaStream_t stream_;
    bool ended_ = false;
  };
  struct Destroyer {
    void operator()(cudaGraphExec_t graph) const;
  };
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}

  std::unique_ptr<CUgraphExec_st, Destroyer> graph_;
};

}  // namespace katt

#endif
