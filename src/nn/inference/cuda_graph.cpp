#include "nn/inference/cuda_graph.hpp"

#if defined(KATT_HAS_CUDA)

#include <stdexcept>

// Weak: a runtime that stands in for CUDA's may lack them.
extern "C" {
__attribute__((weak)) cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
__attribute__((weak)) cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
__attribute__((weak)) cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t,
                                                       unsigned long long);
__attribute__((weak)) cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
__attribute__((weak)) cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);
__attribute__((weak)) cudaError_t cudaGraphDestroy(cudaGraph_t);
}

namespace katt {

namespace {

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // the next launch must not find this error
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

struct GraphDestroyer {
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
};

}  // namespace

std::string CudaGraph::refusal() {
  const bool has_all = cudaStreamBeginCapture != nullptr && cudaStreamEndCapture != nullptr &&
                       cudaGraphInstantiate != nullptr && cudaGraphLaunch != nullptr &&
                       cudaGraphExecDestroy != nullptr && cudaGraphDestroy != nullptr;
  return has_all ? "" : "this CUDA runtime has no graphs";
}

CudaGraph::Capture::Capture(cudaStream_t stream) : stream_(stream) {
  if (std::string reason = refusal(); !reason.empty()) throw std::runtime_error(reason);
  // Relaxed mode: Kokkos 4.5 requests 0 bytes of memory at every launch of teams without scratch
  // memory. The request gives none, but the other modes count it as an allocation.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
}

CudaGraph::Capture::~Capture() {
  if (ended_) return;
  cudaGraph_t dropped = nullptr;
  if (cudaStreamEndCapture(stream_, &dropped) == cudaSuccess) (void)cudaGraphDestroy(dropped);
  (void)cudaGetLastError();
}

CudaGraph CudaGraph::Capture::end() {
  ended_ = true;
  cudaGraph_t noted = nullptr;
  check(cudaStreamEndCapture(stream_, &noted), "cudaStreamEndCapture");
  const std::unique_ptr<CUgraph_st, GraphDestroyer> graph(noted);
  cudaGraphExec_t made = nullptr;
  check(cudaGraphInstantiate(&made, graph.get(), 0), "cudaGraphInstantiate");
  return CudaGraph(made);
}

void CudaGraph::launch(cudaStream_t stream) const {
  check(cudaGraphLaunch(graph_.get(), stream), "cudaGraphLaunch");
}

void CudaGraph::Destroyer::operator()(cudaGraphExec_t graph) const {
  (void)cudaGraphExecDestroy(graph);
}

}  // namespace katt

#endif
