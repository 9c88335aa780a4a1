#include "tests/nn/cuda_calls.hpp"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstddef>
#include <map>
#include <utility>

namespace katt::test {
namespace {

CudaCalls calls;
bool can_capture = true;

/// Nodes of each graph that can be launched.
std::map<cudaGraphExec_t, std::size_t> nodes;

/// The library's own function behind one of this file.
template <class F>
F* behind(F* /*like*/, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}
#define KATT_BEHIND(name)                            \
  ([] {                                              \
    static auto* const found = behind(&name, #name); \
    return found;                                    \
  }())

void count_copy(const void* from, const void* to) {
  const auto is_of_device = [](const void* place) {
    cudaPointerAttributes about{};
    return cudaPointerGetAttributes(&about, place) == cudaSuccess &&
           about.type == cudaMemoryTypeDevice;
  };
  if (is_of_device(from) == is_of_device(to)) {
    ++calls.other_copies;
  } else {
    ++(is_of_device(to) ? calls.copies_to_device : calls.copies_to_host);
  }
}

}  // namespace

CudaCalls count_cuda_calls() { return std::exchange(calls, {}); }
void let_streams_be_captured(bool can) { can_capture = can; }

}  // namespace katt::test

using namespace katt::test;  // NOLINT

extern "C" {

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  ++calls.kernels;
  return KATT_BEHIND(__cudaLaunchKernel)(kernel, grid, block, arguments, shared, stream);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t bytes, cudaStream_t stream) {
  ++calls.products;
  return KATT_BEHIND(cublasLtMatmul)(handle, operation, alpha, a, a_layout, b, b_layout, beta, c,
                                     c_layout, d, d_layout, algorithm, workspace, bytes, stream);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (!can_capture) return cudaErrorNotSupported;
  return KATT_BEHIND(cudaStreamBeginCapture)(stream, mode);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                 unsigned long long flags) {
  const cudaError_t error = KATT_BEHIND(cudaGraphInstantiate)(made, graph, flags);
  if (error == cudaSuccess) (void)cudaGraphGetNodes(graph, nullptr, &nodes[*made]);
  return error;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  ++calls.graphs;
  calls.in_graphs += static_cast<int>(nodes[graph]);
  return KATT_BEHIND(cudaGraphLaunch)(graph, stream);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  count_copy(from, to);
  return KATT_BEHIND(cudaMemcpyAsync)(to, from, bytes, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  count_copy(from, to);
  ++calls.waits;
  return KATT_BEHIND(cudaMemcpy)(to, from, bytes, kind);
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, std::size_t bytes,
                                    std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  ++calls.copies_to_symbols;
  return KATT_BEHIND(cudaMemcpyToSymbolAsync)(symbol, from, bytes, offset, kind, stream);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes,
                               std::size_t offset, cudaMemcpyKind kind) {
  ++calls.copies_to_symbols;
  return KATT_BEHIND(cudaMemcpyToSymbol)(symbol, from, bytes, offset, kind);
}

/// It does nothing for 0 bytes: Kokkos 4.5 requests them at every launch of teams without scratch
/// memory.
cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (bytes > 0) {
    ++calls.allocations;
  }
  return KATT_BEHIND(cudaMalloc)(pointer, bytes);
}

#define KATT_COUNTED(counter, name, parameters, arguments) \
  cudaError_t name parameters {                            \
    ++calls.counter;                                       \
    return KATT_BEHIND(name) arguments;                    \
  }
KATT_COUNTED(waits, cudaStreamSynchronize, (cudaStream_t stream), (stream))
KATT_COUNTED(waits, cudaDeviceSynchronize, (), ())
KATT_COUNTED(waits, cudaEventSynchronize, (cudaEvent_t event), (event))
KATT_COUNTED(allocations, cudaMallocHost, (void** pointer, std::size_t bytes), (pointer, bytes))
KATT_COUNTED(allocations, cudaHostAlloc, (void** pointer, std::size_t bytes, unsigned flags),
             (pointer, bytes, flags))
KATT_COUNTED(allocations, cudaFree, (void* pointer), (pointer))
KATT_COUNTED(allocations, cudaFreeHost, (void* pointer), (pointer))

}  // extern "C"
