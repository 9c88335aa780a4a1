#pragma once

#if defined(KATT_HAS_CUDA)

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

namespace katt {

/// A CUDA graph: work that a stream did once, repeated with one call.
class CudaGraph {
 public:
  /// The reason why this CUDA runtime makes no graphs; empty when it does.
  static std::string refusal();

  /// Calls launch() and records the work that it launches on the stream, without doing it. launch()
  /// must not allocate, wait or use another stream. Throws std::runtime_error when the runtime
  /// refuses; then nothing has been done.
  template <class F>
  static CudaGraph capture(cudaStream_t stream, const F& launch) {
    Capture capture(stream);
    launch();
    return capture.end();
  }

  /// Launches that work on a stream of the same device, and returns.
  void launch(cudaStream_t stream) const;

 private:
  /// A capture in progress; the destructor drops one that has not ended.
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
