#include "tests/nn/cuda_calls.hpp"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace katt::test {
namespace {

CudaCalls calls;
bool can_capture = true;

using Work = std::vector<std::function<void(cudaStream_t)>>;

/// The work of a stream since cudaStreamBeginCapture.
struct Noted {
  cudaStream_t stream;
  bool spoiled = false;
  Work work;
};
std::unique_ptr<Noted> noting;

/// The library's own function behind one of this file; null where it has none.
template <class F>
F* behind(F* /*like*/, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}
#define KATT_BEHIND(name)                            \
  ([] {                                              \
    static auto* const found = behind(&name, #name); \
    return found;                                    \
  }())

void spoil() {
  if (noting) noting->spoiled = true;
}

void count_copy(const void* from, const void* to) {
  const auto is_of_device = [](const void* place) {
    cudaPointerAttributes about{};
    return cudaPointerGetAttributes(&about, place) == cudaSuccess &&
           about.type == cudaMemoryTypeDevice;
  };
  spoil();
  if (is_of_device(from) == is_of_device(to)) {
    ++calls.other_copies;
  } else {
    ++(is_of_device(to) ? calls.copies_to_device : calls.copies_to_host);
  }
}

/// Kernels have one parameter, of at most 4 KiB, which lies on the stack of the caller.
constexpr std::size_t parameter_bytes = 4096;

}  // namespace

CudaCalls count_cuda_calls() { return std::exchange(calls, {}); }
void let_streams_be_captured(bool can) { can_capture = can; }

}  // namespace katt::test

using namespace katt::test;  // NOLINT

extern "C" {

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  const auto launch = KATT_BEHIND(__cudaLaunchKernel);
  if (noting && noting->stream == stream) {
    std::vector<std::max_align_t> copy(parameter_bytes / sizeof(std::max_align_t));
    std::memcpy(copy.data(), arguments[0], parameter_bytes);
    noting->work.emplace_back([=, copy = std::move(copy)](cudaStream_t on) mutable {
      void* argument = copy.data();
      (void)launch(kernel, grid, block, &argument, shared, on);
    });
    return cudaSuccess;
  }
  ++calls.kernels;
  return launch(kernel, grid, block, arguments, shared, stream);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t bytes, cudaStream_t stream) {
  const auto multiply = KATT_BEHIND(cublasLtMatmul);
  if (noting && noting->stream == stream) {
    const float factors[2] = {*static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
    const cublasLtMatmulAlgo_t chosen = *algorithm;
    noting->work.emplace_back([=](cudaStream_t on) {
      (void)multiply(handle, operation, &factors[0], a, a_layout, b, b_layout, &factors[1], c,
                     c_layout, d, d_layout, &chosen, workspace, bytes, on);
    });
    return CUBLAS_STATUS_SUCCESS;
  }
  ++calls.products;
  return multiply(handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d,
                  d_layout, algorithm, workspace, bytes, stream);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (!can_capture) return cudaErrorNotSupported;
  if (const auto begin = KATT_BEHIND(cudaStreamBeginCapture)) return begin(stream, mode);
  if (noting) return cudaErrorIllegalState;
  noting = std::make_unique<Noted>(Noted{stream, false, {}});
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (const auto end = KATT_BEHIND(cudaStreamEndCapture)) return end(stream, graph);
  const std::unique_ptr<Noted> noted = std::move(noting);
  *graph = nullptr;
  if (!noted || noted->stream != stream || noted->spoiled) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(new Work(noted->work));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (const auto instantiate = KATT_BEHIND(cudaGraphInstantiate)) {
    return instantiate(made, graph, flags);
  }
  *made = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  ++calls.graphs;
  if (const auto launch = KATT_BEHIND(cudaGraphLaunch)) return launch(graph, stream);
  for (const auto& work : *reinterpret_cast<Work*>(graph)) {
    work(stream);
    ++calls.in_graphs;
  }
  return cudaPeekAtLastError();
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  if (const auto destroy = KATT_BEHIND(cudaGraphExecDestroy)) return destroy(graph);
  delete reinterpret_cast<Work*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (const auto destroy = KATT_BEHIND(cudaGraphDestroy)) return destroy(graph);
  delete reinterpret_cast<Work*>(graph);
  return cudaSuccess;
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
  spoil();
  ++calls.copies_to_symbols;
  return KATT_BEHIND(cudaMemcpyToSymbolAsync)(symbol, from, bytes, offset, kind, stream);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes,
                               std::size_t offset, cudaMemcpyKind kind) {
  spoil();
  ++calls.copies_to_symbols;
  return KATT_BEHIND(cudaMemcpyToSymbol)(symbol, from, bytes, offset, kind);
}

/// It does nothing for 0 bytes: Kokkos 4.5 requests them at every launch of teams without scratch
/// memory.
cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  if (bytes > 0) {
    spoil();
    ++calls.allocations;
  }
  return KATT_BEHIND(cudaMalloc)(pointer, bytes);
}

#define KATT_COUNTED(counter, name, parameters, arguments) \
  cudaError_t name parameters {                            \
    spoil();                                               \
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
