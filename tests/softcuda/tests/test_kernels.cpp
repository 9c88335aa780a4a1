#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>

// Launches of kernels that nvcc compiled: arguments, symbols, what a device refuses, faults.

namespace {

__constant__ int table[4] = {1, 2, 3, 4};
__device__ float counter = 2.5F;

struct Pack {
  char a;
  double b;
  short c;
};

__global__ void write(int* out, Pack pack, char tag, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = table[i % 4] * 100 + static_cast<int>(pack.b) + pack.c + tag;
}
__global__ void __launch_bounds__(64) bounded(int* out) {
  out[threadIdx.x] = static_cast<int>(blockDim.x);
}
__global__ void reverse(int* out) {
  extern __shared__ int buffer[];
  buffer[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = buffer[blockDim.x - 1 - threadIdx.x];
}
__global__ void bump() { atomicAdd(&counter, 1.0F); }
__global__ void add(int* out, int n) { out[0] += n; }
__global__ void stray(int* out) { out[100000] = 1; }

class Kernels : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaMalloc(&device_, 1000 * sizeof(int)), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(&pinned_, 1000 * sizeof(int)), cudaSuccess);
  }
  void TearDown() override {
    cudaDeviceReset();
    cudaFree(device_);
    cudaFreeHost(pinned_);
  }
  void fetch(std::size_t count) {
    ASSERT_EQ(cudaMemcpy(pinned_, device_, count * sizeof(int), cudaMemcpyDeviceToHost),
              cudaSuccess);
  }

  int* device_ = nullptr;
  int* pinned_ = nullptr;
};

TEST_F(Kernels, TakeArgumentsOfAnyAlignment) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  std::memset(pinned_, 0, 4000);
  write<<<8, 128, 0, stream>>>(device_, {'x', 7.0, 3}, 5, 1000);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(pinned_, device_, 4000, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(pinned_[0], 0) << "executed before a call waits";
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(pinned_[i], (i % 4 + 1) * 100 + 15) << i;
}

TEST_F(Kernels, ReadAndWriteSymbols) {
  const int old[2] = {3, 4}, other[2] = {8, 9};
  EXPECT_EQ(cudaMemcpyToSymbol(table, other, 8, 8), cudaSuccess);
  EXPECT_EQ(cudaMemcpyToSymbol(table, other, 8, 12), cudaErrorInvalidValue);
  cudaGetLastError();
  write<<<1, 32>>>(device_, {0, 0.0, 0}, 0, 4);
  fetch(4);
  EXPECT_EQ(pinned_[1], 200);
  EXPECT_EQ(pinned_[2], 800);
  EXPECT_EQ(pinned_[3], 900);
  EXPECT_EQ(cudaMemcpyToSymbol(table, old, 8, 8), cudaSuccess);
  bump<<<2, 32>>>();
  float value = 0;
  EXPECT_EQ(cudaMemcpyFromSymbol(&value, counter, 4), cudaSuccess);
  EXPECT_EQ(value, 66.5F);
}

TEST_F(Kernels, RefuseShapesThatADeviceRefuses) {
  for (const auto& [grid, block] : {std::pair{dim3(0), dim3(32)}, std::pair{dim3(1), dim3(1025)},
                                    std::pair{dim3(1, 65536), dim3(1)}}) {
    write<<<grid, block>>>(device_, {}, 0, 4);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  }
  bounded<<<1, 65>>>(device_);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  bounded<<<1, 64>>>(device_);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Kernels, GetTheSharedMemoryThatTheyAskFor) {
  constexpr auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  reverse<<<1, 256, 49153>>>(device_);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(reverse, most, 232449), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(reverse, most, 232448), cudaSuccess);
  cudaGetLastError();
  reverse<<<1, 256, 232448>>>(device_);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  fetch(256);
  EXPECT_EQ(pinned_[0], 255);
  EXPECT_EQ(pinned_[255], 0);
}

TEST_F(Kernels, HaveAttributes) {
  cudaFuncAttributes attributes;
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, bounded), cudaSuccess);
  EXPECT_EQ(attributes.maxThreadsPerBlock, 64);
  EXPECT_EQ(attributes.binaryVersion, 90);
  int blocks = 0;
  EXPECT_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded, 64, 0), cudaSuccess);
  EXPECT_GE(blocks, 16);
}

class Graphs : public Kernels {
 protected:
  void SetUp() override {
    Kernels::SetUp();
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    ASSERT_EQ(cudaMemset(device_, 0, sizeof(int)), cudaSuccess);
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
    add<<<1, 1, 0, stream_>>>(device_, 3);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  void expect_invalid() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    cudaGetLastError();
  }

  cudaStream_t stream_ = nullptr;
};

TEST_F(Graphs, RepeatWhatWasCaptured) {
  begin();
  EXPECT_EQ(cudaMemcpyAsync(pinned_, device_, sizeof(int), cudaMemcpyDeviceToHost, stream_),
            cudaSuccess);
  cudaStreamCaptureStatus status;
  EXPECT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  std::size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 2U);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  fetch(1);
  EXPECT_EQ(pinned_[0], 0) << "a capture executed its operations";
  for (int n = 1; n <= 3; ++n) {
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(pinned_[0], 3 * n);
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaErrorInvalidValue);
}

TEST_F(Graphs, AreRefusedAfterACallThatACaptureForbids) {
  char pageable[4] = {};
  int* more = nullptr;
  begin();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  expect_invalid();
  begin();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  expect_invalid();
  begin();
  EXPECT_EQ(cudaMemcpyAsync(device_, pageable, 4, cudaMemcpyHostToDevice, stream_),
            cudaErrorStreamCaptureUnsupported);
  expect_invalid();
  begin();
  EXPECT_EQ(cudaMemset(device_, 0, 4), cudaErrorStreamCaptureImplicit);
  expect_invalid();
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaMalloc(&more, 4), cudaErrorStreamCaptureUnsupported);
  expect_invalid();
}

TEST_F(Graphs, AllowAllocationsInARelaxedCapture) {
  int* more = nullptr;
  begin();
  EXPECT_EQ(cudaMalloc(&more, 4), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
}

TEST_F(Kernels, AFaultIsSticky) {
  stray<<<1, 1>>>(device_);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemset(device_, 0, 4), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
}

}  // namespace
