#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>

/// The products of libcublas and libcublasLt: computed in f32 by the host when the stream gets there.
namespace softcuda::libraries {

bool known(cudaDataType_t type);

struct Matrix {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0, leading = 0;
  bool row_major = false;
  int batches = 1;
  std::int64_t batch_stride = 0;
  std::size_t index(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row_major ? row * leading + column : column * leading + row);
  }
  /// Elements from the first to the last that is used, in one matrix.
  std::size_t span() const { return rows && columns ? index(rows - 1, columns - 1) + 1 : 0; }
  std::size_t span_all() const {
    return span() ? span() + static_cast<std::size_t>(static_cast<std::int64_t>(batches - 1) *
                                                      batch_stride)
                  : 0;
  }
  bool consistent() const {
    return rows > 0 && columns > 0 && leading >= (row_major ? columns : rows) && batches > 0;
  }
};

struct Product {
  Matrix a, b, c, d;
  bool trans_a = false, trans_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
  const void *pa = nullptr, *pb = nullptr, *pc = nullptr;
  void* pd = nullptr;
  unsigned epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
  std::int64_t bias_stride = 0;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

/// Checks the operands and queues the product.
cublasStatus_t submit(const char* api, const Product& p, cudaStream_t stream);

/// The memory of the device behind an address of a kernel or a product.
void* mapped(const void* pointer, std::size_t bytes);

/// Reports what is wrong, and returns the status.
cublasStatus_t bad(const char* api, cublasStatus_t status, const std::string& line);

/// Handles and descriptors that live.
class Alive {
 public:
  template <class T>
  T* add(T* object) {
    const std::lock_guard lock(mutex_);
    set_.insert(object);
    return object;
  }
  bool has(const void* object) const {
    const std::lock_guard lock(mutex_);
    return set_.count(object) != 0;
  }
  bool remove(const void* object) {
    const std::lock_guard lock(mutex_);
    return set_.erase(object) != 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<const void*> set_;
};

}  // namespace softcuda::libraries
