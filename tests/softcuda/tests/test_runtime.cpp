#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

// The runtime and cuBLAS without kernels: errors, streams, events, copies, products.

namespace {

constexpr std::size_t bytes = 1000;

class Runtime : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaMalloc(&device_, bytes), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned_), bytes), cudaSuccess);
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
  }

  void* device_ = nullptr;
  char* pinned_ = nullptr;
  char pageable_[2 * bytes] = {};
  cudaStream_t stream_ = nullptr,
               other_ = nullptr;  // the second does not wait for the legacy stream
};

TEST_F(Runtime, ReturnsAnErrorOnceAsTheLast) {
  EXPECT_EQ(cudaFree(static_cast<char*>(device_) + 256), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(7), cudaErrorInvalidDevice);
}

TEST_F(Runtime, RefusesCopiesThatADeviceRefuses) {
  EXPECT_EQ(cudaMemcpy(device_, pageable_, bytes + 1, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device_, pageable_, bytes, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(pageable_, pageable_ + bytes, 100, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(pageable_, 0, 10), cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_F(Runtime, KnowsWhereAPointerPoints) {
  cudaPointerAttributes at;
  EXPECT_EQ(cudaPointerGetAttributes(&at, device_), cudaSuccess);
  EXPECT_EQ(at.type, cudaMemoryTypeDevice);
  EXPECT_EQ(at.devicePointer, device_);
  EXPECT_EQ(cudaPointerGetAttributes(&at, pageable_), cudaSuccess);
  EXPECT_EQ(at.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaPointerGetAttributes(&at, pinned_ + 5), cudaSuccess);
  EXPECT_EQ(at.type, cudaMemoryTypeHost);
}

TEST_F(Runtime, ExecutesAStreamWhenACallWaits) {
  std::memset(pinned_, 1, bytes);
  EXPECT_EQ(cudaMemsetAsync(device_, 7, bytes, stream_), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(pinned_, device_, bytes, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
  EXPECT_EQ(pinned_[3], 1);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(pinned_[3], 7);
  EXPECT_EQ(pinned_[bytes - 1], 7);
}

TEST_F(Runtime, StagesPageableMemoryAtTheCall) {
  std::memset(pageable_, 9, sizeof pageable_);
  EXPECT_EQ(cudaMemcpyAsync(device_, pageable_, bytes, cudaMemcpyHostToDevice, stream_),
            cudaSuccess);
  std::memset(pageable_, 0, sizeof pageable_);
  EXPECT_EQ(cudaMemcpyAsync(pageable_, device_, bytes, cudaMemcpyDeviceToHost, stream_),
            cudaSuccess);
  EXPECT_EQ(pageable_[10], 9);
}

TEST_F(Runtime, TheLegacyStreamWaitsForBlockingStreams) {
  EXPECT_EQ(cudaMemsetAsync(device_, 3, bytes, stream_), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(pageable_, device_, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(pageable_[0], 3);
}

TEST_F(Runtime, EventsOrderStreams) {
  cudaEvent_t first = nullptr, second = nullptr;
  ASSERT_EQ(cudaEventCreate(&first), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&second), cudaSuccess);
  for (int i = 0; i < 50; ++i) {
    cudaEventRecord(first, stream_);
    cudaMemsetAsync(device_, 10 + i, bytes, stream_);
    cudaEventRecord(second, stream_);
    EXPECT_EQ(cudaStreamWaitEvent(other_, second, 0), cudaSuccess);
    cudaMemcpyAsync(pinned_, device_, bytes, cudaMemcpyDeviceToHost, other_);
    EXPECT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
    EXPECT_EQ(pinned_[5], 10 + i);
  }
  float time_ms = -1;
  EXPECT_EQ(cudaEventElapsedTime(&time_ms, first, second), cudaSuccess);
  EXPECT_GE(time_ms, 0);
  EXPECT_EQ(cudaEventDestroy(first), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(first), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(second), cudaSuccess);
}

TEST_F(Runtime, WithoutAnEventBothOrdersHappen) {
  int before = 0, after = 0;
  for (int i = 0; i < 100; ++i) {
    cudaMemset(device_, 1, bytes);
    cudaDeviceSynchronize();
    cudaMemsetAsync(device_, 2, bytes, stream_);
    cudaMemcpyAsync(pinned_, device_, bytes, cudaMemcpyDeviceToHost, other_);
    cudaStreamSynchronize(other_);
    (pinned_[0] == 1 ? before : after) += 1;
  }
  EXPECT_GT(before, 10);
  EXPECT_GT(after, 10);
}

TEST_F(Runtime, KnowsDestroyedStreams) {
  EXPECT_EQ(cudaStreamDestroy(other_), cudaSuccess);
  EXPECT_NE(cudaStreamSynchronize(other_), cudaSuccess);
  cudaGetLastError();
}

/// C (5 × 6) = alpha · A (5 × 7) · B (7 × 6) + beta · C, column-major as cuBLAS has it.
class Cublas : public ::testing::Test {
 protected:
  static constexpr int m = 5, n = 6, k = 7;

  void SetUp() override {
    for (int i = 0; i < m * k; ++i) a_[i] = static_cast<float>(i % 11) - 5;
    for (int i = 0; i < k * n; ++i) b_[i] = static_cast<float>(i % 7) - 3;
    device_a_ = upload(a_);
    device_b_ = upload(b_);
    device_c_ = upload(c_);
    ASSERT_EQ(cublasCreate(&handle_), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cublasDestroy(handle_), CUBLAS_STATUS_SUCCESS);
    for (float* p : {device_a_, device_b_, device_c_}) EXPECT_EQ(cudaFree(p), cudaSuccess);
  }
  static float* upload(const std::vector<float>& values) {
    float* device = nullptr;
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), values.size() * 4), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device, values.data(), values.size() * 4, cudaMemcpyHostToDevice),
              cudaSuccess);
    return device;
  }
  cublasStatus_t multiply(bool ta, bool tb, int columns, int lda) {
    const float alpha = 2, beta = 0.5F;
    return cublasSgemm(handle_, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, m,
                       columns, k, &alpha, device_a_, lda, device_b_, tb ? n : k, &beta, device_c_,
                       m);
  }
  float expected(bool ta, bool tb, int i, int j) const {
    float sum = 0;
    for (int q = 0; q < k; ++q) {
      sum += (ta ? a_[i * k + q] : a_[q * m + i]) * (tb ? b_[q * n + j] : b_[j * k + q]);
    }
    return 2 * sum + 0.5F * c_[j * m + i];
  }

  std::vector<float> a_ = std::vector<float>(m * k), b_ = std::vector<float>(k * n);
  std::vector<float> c_ = std::vector<float>(m * n, 1.0F);
  float *device_a_ = nullptr, *device_b_ = nullptr, *device_c_ = nullptr;
  cublasHandle_t handle_ = nullptr;
};

TEST_F(Cublas, MultipliesTransposedOperands) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      cudaMemcpy(device_c_, c_.data(), c_.size() * 4, cudaMemcpyHostToDevice);
      ASSERT_EQ(multiply(ta, tb, n, ta ? k : m), CUBLAS_STATUS_SUCCESS);
      std::vector<float> got(c_.size());
      cudaMemcpy(got.data(), device_c_, got.size() * 4, cudaMemcpyDeviceToHost);
      for (int j = 0; j < n; ++j) {
        for (int i = 0; i < m; ++i) ASSERT_EQ(got[j * m + i], expected(ta, tb, i, j)) << ta << tb;
      }
    }
  }
}

TEST_F(Cublas, ChecksShapesAndOperands) {
  EXPECT_EQ(multiply(false, false, n, m - 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(false, false, n + 1, m), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(cublasDestroy(nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(Cublas, RefusesAWorkspaceThatIsNotAlignedTo256Bytes) {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t square;
  ASSERT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&square, CUDA_R_32F, 5, 5, 5), CUBLAS_STATUS_SUCCESS);
  char* workspace = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&workspace), 1024), cudaSuccess);
  const float one = 1, zero = 0;
  for (const int offset : {128, 256}) {
    EXPECT_EQ(cublasLtMatmul(handle, product, &one, device_a_, square, device_b_, square, &zero,
                             device_c_, square, device_c_, square, nullptr, workspace + offset, 512,
                             nullptr),
              offset == 128 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS);
  }
  EXPECT_EQ(cublasLtMatrixLayoutDestroy(square), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulDescDestroy(product), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaFree(workspace), cudaSuccess);
}

}  // namespace
