#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/softcuda/libraries/product.hpp"
#include "tests/softcuda/runtime/runtime.hpp"

// libcublas.so.13.

using softcuda::in_one_allocation;
using softcuda::text;
using namespace softcuda::libraries;

namespace {

Alive& handles = *new Alive;  // lives for ever, because calls may come while the program ends

struct Handle {
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
};

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (!handle) return bad("cublasCreate", CUBLAS_STATUS_INVALID_VALUE, "null pointer");
  if (softcuda::device_state("cublasCreate") != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasHandle_t>(handles.add(new Handle));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  if (!handles.remove(handle))
    return bad("cublasDestroy", CUBLAS_STATUS_NOT_INITIALIZED, "that is not a handle");
  return softcuda::device_state("cublasDestroy") == cudaErrorCudartUnloading
             ? CUBLAS_STATUS_NOT_INITIALIZED
             : CUBLAS_STATUS_SUCCESS;
}
#define HANDLE(api)                                                         \
  if (!handles.has(handle))                                                 \
    return bad(api, CUBLAS_STATUS_NOT_INITIALIZED, "that is not a handle"); \
  Handle& h = *reinterpret_cast<Handle*>(handle)
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  HANDLE("cublasSetStream");
  if (softcuda::check_stream("cublasSetStream", stream) != cudaSuccess)
    return CUBLAS_STATUS_INVALID_VALUE;
  h.stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  HANDLE("cublasGetStream");
  *stream = h.stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  HANDLE("cublasSetPointerMode");
  h.pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  HANDLE("cublasGetPointerMode");
  *mode = h.pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  HANDLE("cublasSetMathMode");
  h.math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  HANDLE("cublasGetMathMode");
  *mode = h.math;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  HANDLE("cublasSetWorkspace");
  (void)h;
  return bytes == 0 || in_one_allocation("cublasSetWorkspace", "workspace", workspace, bytes)
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = 130000;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusName(cublasStatus_t status) { return cublasLtGetStatusName(status); }
const char* cublasGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

static cublasStatus_t gemm(const char* api, cublasHandle_t handle, cublasOperation_t trans_a,
                           cublasOperation_t trans_b, std::int64_t m, std::int64_t n,
                           std::int64_t k, const void* alpha, const void* pa, cudaDataType_t type_a,
                           std::int64_t lda, std::int64_t stride_a, const void* pb,
                           cudaDataType_t type_b, std::int64_t ldb, std::int64_t stride_b,
                           const void* beta, void* pc, cudaDataType_t type_c, std::int64_t ldc,
                           std::int64_t stride_c, int batches) {
  HANDLE(api);
  if (m < 0 || n < 0 || k < 0 || batches < 0 || trans_a < 0 || trans_a > 2 || trans_b < 0 ||
      trans_b > 2)
    return bad(api, CUBLAS_STATUS_INVALID_VALUE,
               text("m=%ld n=%ld k=%ld", static_cast<long>(m), static_cast<long>(n),
                    static_cast<long>(k)));
  if (h.pointer_mode != CUBLAS_POINTER_MODE_HOST)
    return bad(api, CUBLAS_STATUS_NOT_SUPPORTED,
               "softcuda takes alpha and beta from the host only");
  if (!known(type_a) || type_a != type_b || !known(type_c))
    return bad(api, CUBLAS_STATUS_NOT_SUPPORTED, "types");
  Product p;
  p.trans_a = trans_a != CUBLAS_OP_N;
  p.trans_b = trans_b != CUBLAS_OP_N;
  p.m = m;
  p.n = n;
  p.k = k;
  const auto matrix = [&](cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                          std::int64_t leading, std::int64_t stride) {
    Matrix made;
    made.type = type;
    made.rows = rows;
    made.columns = columns;
    made.leading = leading;
    made.batches = batches;
    made.batch_stride = stride;
    return made;
  };
  p.a = p.trans_a ? matrix(type_a, k, m, lda, stride_a) : matrix(type_a, m, k, lda, stride_a);
  p.b = p.trans_b ? matrix(type_b, n, k, ldb, stride_b) : matrix(type_b, k, n, ldb, stride_b);
  p.c = p.d = matrix(type_c, m, n, ldc, stride_c);
  if (lda < std::max<std::int64_t>(1, p.a.rows) || ldb < std::max<std::int64_t>(1, p.b.rows) ||
      ldc < std::max<std::int64_t>(1, m)) {
    return bad(api, CUBLAS_STATUS_INVALID_VALUE,
               text("m=%ld n=%ld k=%ld with leading dimensions %ld, %ld, %ld", static_cast<long>(m),
                    static_cast<long>(n), static_cast<long>(k), static_cast<long>(lda),
                    static_cast<long>(ldb), static_cast<long>(ldc)));
  }
  if (!alpha || !beta) return bad(api, CUBLAS_STATUS_INVALID_VALUE, "null pointer");
  if (batches == 0) return CUBLAS_STATUS_SUCCESS;
  std::memcpy(&p.alpha, alpha, 4);
  std::memcpy(&p.beta, beta, 4);
  p.pa = pa;
  p.pb = pb;
  p.pc = p.pd = pc;
  return submit(api, p, h.stream);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                              int m, int n, int k, const float* alpha, const float* a, int lda,
                              const float* b, int ldb, const float* beta, float* c, int ldc) {
  return gemm("cublasSgemm", handle, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, 0, b, CUDA_R_32F,
              ldb, 0, beta, c, CUDA_R_32F, ldc, 0, 1);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta,
                                         cublasOperation_t tb, int m, int n, int k,
                                         const float* alpha, const float* a, int lda, long long sa,
                                         const float* b, int ldb, long long sb, const float* beta,
                                         float* c, int ldc, long long sc, int batches) {
  return gemm("cublasSgemmStridedBatched", handle, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, sa,
              b, CUDA_R_32F, ldb, sb, beta, c, CUDA_R_32F, ldc, sc, batches);
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType type_a, int lda, const void* b, cudaDataType type_b,
                            int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t, cublasGemmAlgo_t) {
  return gemm("cublasGemmEx", handle, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0,
              beta, c, type_c, ldc, 0, 1);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta,
                                          cublasOperation_t tb, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType type_a,
                                          int lda, long long sa, const void* b, cudaDataType type_b,
                                          int ldb, long long sb, const void* beta, void* c,
                                          cudaDataType type_c, int ldc, long long sc, int batches,
                                          cublasComputeType_t, cublasGemmAlgo_t) {
  return gemm("cublasGemmStridedBatchedEx", handle, ta, tb, m, n, k, alpha, a, type_a, lda, sa, b,
              type_b, ldb, sb, beta, c, type_c, ldc, sc, batches);
}

cublasStatus_t cublasSgemv_v2(cublasHandle_t handle, cublasOperation_t trans, int m, int n,
                              const float* alpha, const float* a, int lda, const float* x, int incx,
                              const float* beta, float* y, int incy) {
  const char* const api = "cublasSgemv";
  HANDLE(api);
  if (m < 0 || n < 0 || incx == 0 || incy == 0 || lda < std::max(1, m) || !alpha || !beta)
    return bad(api, CUBLAS_STATUS_INVALID_VALUE,
               text("m=%d n=%d lda=%d incx=%d incy=%d", m, n, lda, incx, incy));
  if (h.pointer_mode != CUBLAS_POINTER_MODE_HOST)
    return bad(api, CUBLAS_STATUS_NOT_SUPPORTED,
               "softcuda takes alpha and beta from the host only");
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  const bool transposed = trans != CUBLAS_OP_N;
  const std::int64_t in = transposed ? m : n, out = transposed ? n : m;
  const std::size_t a_bytes = (static_cast<std::size_t>(n - 1) * static_cast<std::size_t>(lda) +
                               static_cast<std::size_t>(m)) *
                              4;
  const std::size_t
      x_bytes =
          (static_cast<std::size_t>(in - 1) * static_cast<std::size_t>(std::abs(incx)) + 1) * 4,
      y_bytes =
          (static_cast<std::size_t>(out - 1) * static_cast<std::size_t>(std::abs(incy)) + 1) * 4;
  if (!in_one_allocation(api, "A", a, a_bytes) || !in_one_allocation(api, "x", x, x_bytes) ||
      !in_one_allocation(api, "y", y, y_bytes))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  const float factor = *alpha, old = *beta;
  const cudaError_t error =
      softcuda::enqueue(api, h.stream, text("cublasSgemv %d x %d", m, n), [=] {
        const float* const ma = static_cast<const float*>(mapped(a, a_bytes));
        const float* const mx =
            static_cast<const float*>(mapped(x, x_bytes)) + (incx < 0 ? (1 - in) * incx : 0);
        float* const my =
            static_cast<float*>(mapped(y, y_bytes)) + (incy < 0 ? (1 - out) * incy : 0);
        std::vector<float> sums(static_cast<std::size_t>(out), 0.0F);
        for (std::int64_t j = 0; j < n; ++j) {
          for (std::int64_t i = 0; i < m; ++i) {
            const float value = ma[j * lda + i];
            if (transposed) {
              sums[static_cast<std::size_t>(j)] += value * mx[i * incx];
            } else {
              sums[static_cast<std::size_t>(i)] += value * mx[j * incx];
            }
          }
        }
        for (std::int64_t i = 0; i < out; ++i) {
          float& to = my[i * incy];
          to = old != 0 ? factor * sums[static_cast<std::size_t>(i)] + old * to
                        : factor * sums[static_cast<std::size_t>(i)];
        }
      });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
