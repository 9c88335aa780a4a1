#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "tests/softcuda/device.hpp"
#include "tests/softcuda/halves.hpp"
#include "tests/softcuda/runtime/runtime.hpp"

// libcublas.so.13 and libcublasLt.so.13: products of matrices, computed in f32 by the host when the
// stream gets there.

using softcuda::in_one_allocation;
using softcuda::narrow;
using softcuda::report;
using softcuda::text;
using softcuda::widen;

namespace {

// ---- Types.

std::size_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }
bool known(cudaDataType_t type) {
  return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

float load(const void* data, cudaDataType_t type, std::size_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return type == CUDA_R_16BF ? widen<true>(bits) : widen<false>(bits);
}
void store(void* data, cudaDataType_t type, std::size_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(data)[i] =
        type == CUDA_R_16BF ? narrow<true>(value) : narrow<false>(value);
  }
}

// ---- A matrix and a product.

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

const void* at(const void* base, const Matrix& matrix, int batch) {
  return static_cast<const char*>(base) + static_cast<std::int64_t>(batch) * matrix.batch_stride *
                                              static_cast<std::int64_t>(bytes_of(matrix.type));
}
void* mapped(const void* pointer, std::size_t bytes) {
  return softcuda::reach(reinterpret_cast<std::uint64_t>(pointer), bytes);
}

bool multiplies(const Product& p) { return p.k > 0 && p.alpha != 0; }

/// The operands of one batch as f32: A column by column (m × k), B so as well (k × n).
struct Operands {
  std::vector<float> a, b;
};
Operands read_operands(const Product& p, int batch) {
  Operands o{std::vector<float>(static_cast<std::size_t>(p.m * p.k)),
             std::vector<float>(static_cast<std::size_t>(p.k * p.n))};
  const void* const a = mapped(at(p.pa, p.a, batch), p.a.span() * bytes_of(p.a.type));
  const void* const b = mapped(at(p.pb, p.b, batch), p.b.span() * bytes_of(p.b.type));
  for (std::int64_t q = 0; q < p.k; ++q) {
    for (std::int64_t i = 0; i < p.m; ++i) {
      o.a[static_cast<std::size_t>(q * p.m + i)] =
          load(a, p.a.type, p.trans_a ? p.a.index(q, i) : p.a.index(i, q));
    }
  }
  for (std::int64_t j = 0; j < p.n; ++j) {
    for (std::int64_t q = 0; q < p.k; ++q) {
      o.b[static_cast<std::size_t>(j * p.k + q)] =
          load(b, p.b.type, p.trans_b ? p.b.index(j, q) : p.b.index(q, j));
    }
  }
  return o;
}

/// result (m × n, column by column) = A · B, in blocks that stay in the registers and the first cache.
void multiply(const Product& p, const Operands& o, std::vector<float>& result) {
  constexpr std::int64_t rows_at_once = 256, columns_at_once = 4;
  for (std::int64_t i0 = 0; i0 < p.m; i0 += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, p.m - i0);
    for (std::int64_t j0 = 0; j0 < p.n; j0 += columns_at_once) {
      const std::int64_t columns = std::min(columns_at_once, p.n - j0);
      float sums[columns_at_once][rows_at_once] = {};
      for (std::int64_t q = 0; q < p.k; ++q) {
        const float* const line = o.a.data() + q * p.m + i0;
        for (std::int64_t j = 0; j < columns; ++j) {
          const float factor = o.b[static_cast<std::size_t>((j0 + j) * p.k + q)];
          for (std::int64_t i = 0; i < rows; ++i) sums[j][i] += line[i] * factor;
        }
      }
      for (std::int64_t j = 0; j < columns; ++j) {
        std::copy_n(sums[j], rows, result.data() + (j0 + j) * p.m + i0);
      }
    }
  }
}

/// D = epilogue(alpha · result + beta · C).
void write_result(const Product& p, int batch, const std::vector<float>& result) {
  const void* const c =
      p.beta != 0 ? mapped(at(p.pc, p.c, batch), p.c.span() * bytes_of(p.c.type)) : nullptr;
  void* const d = mapped(at(p.pd, p.d, batch), p.d.span() * bytes_of(p.d.type));
  const void* bias = nullptr;
  if (p.epilogue & CUBLASLT_EPILOGUE_BIAS) {
    const auto bytes = static_cast<std::int64_t>(bytes_of(p.bias_type));
    bias = mapped(static_cast<const char*>(p.bias) + batch * p.bias_stride * bytes,
                  static_cast<std::size_t>(p.m * bytes));
  }
  for (std::int64_t j = 0; j < p.n; ++j) {
    for (std::int64_t i = 0; i < p.m; ++i) {
      float value = p.alpha * result[static_cast<std::size_t>(j * p.m + i)];
      if (c) value += p.beta * load(c, p.c.type, p.c.index(i, j));
      if (bias) value += load(bias, p.bias_type, static_cast<std::size_t>(i));
      if (p.epilogue & CUBLASLT_EPILOGUE_RELU) value = std::max(value, 0.0F);
      if (p.epilogue & CUBLASLT_EPILOGUE_GELU) {
        const float inner = value + 0.044715F * value * value * value;
        value = 0.5F * value * (1 + std::tanh(0.7978845608F * inner));
      }
      store(d, p.d.type, p.d.index(i, j), value);
    }
  }
}

void compute(const Product& p) {
  if (p.workspace_bytes) {
    std::memset(mapped(p.workspace, p.workspace_bytes), 0xFF, p.workspace_bytes);
  }
  std::vector<float> result(static_cast<std::size_t>(p.m * p.n));
  for (int batch = 0; batch < p.d.batches; ++batch) {
    if (multiplies(p)) multiply(p, read_operands(p, batch), result);
    write_result(p, batch, result);
  }
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

std::size_t bytes_of(const Matrix& matrix) { return matrix.span_all() * bytes_of(matrix.type); }

bool are_aligned(const char* api, const Product& p) {
  const auto aligned = [&](const char* operand, const void* pointer, cudaDataType_t type) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % bytes_of(type) == 0) return true;
    report(text("%s: %s at %p is not aligned for its type", api, operand, pointer));
    return false;
  };
  return aligned("A", p.pa, p.a.type) && aligned("B", p.pb, p.b.type) &&
         aligned("D", p.pd, p.d.type);
}

/// Whether every operand lies in one allocation. The real library launches a kernel that faults;
/// here the caller hears of it at once.
bool are_allocated(const char* api, const Product& p) {
  if (multiplies(p) && (!in_one_allocation(api, "A", p.pa, bytes_of(p.a)) ||
                        !in_one_allocation(api, "B", p.pb, bytes_of(p.b)))) {
    return false;
  }
  if (p.beta != 0 && !in_one_allocation(api, "C", p.pc, bytes_of(p.c))) return false;
  if (!in_one_allocation(api, "D", p.pd, bytes_of(p.d))) return false;
  const std::size_t bias_bytes = static_cast<std::size_t>(p.m) * bytes_of(p.bias_type);
  if ((p.epilogue & CUBLASLT_EPILOGUE_BIAS) &&
      !in_one_allocation(api, "bias", p.bias, bias_bytes)) {
    return false;
  }
  return p.workspace_bytes == 0 ||
         in_one_allocation(api, "workspace", p.workspace, p.workspace_bytes);
}

/// Reports a D that overlaps A or B, and a workspace that overlaps an operand.
void report_overlaps(const char* api, const Product& p) {
  if (multiplies(p) && (overlap(p.pa, bytes_of(p.a), p.pd, bytes_of(p.d)) ||
                        overlap(p.pb, bytes_of(p.b), p.pd, bytes_of(p.d)))) {
    report(text("%s: D overlaps an operand of the product", api));
  }
  const struct {
    const char* name;
    const void* pointer;
    std::size_t bytes;
  } operands[] = {{"A", p.pa, bytes_of(p.a)},
                  {"B", p.pb, bytes_of(p.b)},
                  {"C", p.pc, p.beta != 0 ? bytes_of(p.c) : 0},
                  {"D", p.pd, bytes_of(p.d)}};
  for (const auto& operand : operands) {
    if (p.workspace_bytes && operand.bytes &&
        overlap(operand.pointer, operand.bytes, p.workspace, p.workspace_bytes)) {
      report(text("%s: %s overlaps the workspace", api, operand.name));
    }
  }
}

/// Checks the operands and queues the product.
cublasStatus_t submit(const char* api, const Product& p, cudaStream_t stream) {
  if (p.m == 0 || p.n == 0) return CUBLAS_STATUS_SUCCESS;
  if (!are_aligned(api, p)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!are_allocated(api, p)) return CUBLAS_STATUS_EXECUTION_FAILED;
  report_overlaps(api, p);
  const cudaError_t error =
      softcuda::enqueue(api, stream,
                        text("%s m=%ld n=%ld k=%ld batches=%d", api, static_cast<long>(p.m),
                             static_cast<long>(p.n), static_cast<long>(p.k), p.d.batches),
                        [p] { compute(p); });
  return error == cudaSuccess                      ? CUBLAS_STATUS_SUCCESS
         : error == cudaErrorInvalidResourceHandle ? CUBLAS_STATUS_INVALID_VALUE
                                                   : CUBLAS_STATUS_EXECUTION_FAILED;
}

// ---- Handles and descriptors that live.

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
// They live for ever, because calls may come while the program ends.
Alive& handles = *new Alive;
Alive& lt_handles = *new Alive;
Alive& layouts = *new Alive;
Alive& descriptions = *new Alive;
Alive& preferences = *new Alive;

struct Handle {
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
};

struct Description {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  cublasLtPointerMode_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int64_t bias_stride = 0;
  std::int32_t bias_type = -1;
};

struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Algorithm {  // in cublasLtMatmulAlgo_t
  std::uint32_t magic;
  std::uint32_t alignment[4];
  std::uint64_t workspace;
};
constexpr std::uint32_t algorithm_magic = 0x50f7a190;

template <class T>
cublasStatus_t set_to(const char* api, T& target, const void* from, std::size_t bytes) {
  if (bytes != sizeof(T) || !from) {
    report(text("%s: the attribute has %zu bytes, %zu were given", api, sizeof(T), bytes));
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(&target, from, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t bad(const char* api, cublasStatus_t status, const std::string& line) {
  report(text("%s: %s (%s)", api, line.c_str(), cublasLtGetStatusName(status)));
  return status;
}

/// Fills in the shapes of a product; SUCCESS, or what cuBLAS would say.
cublasStatus_t shape(const char* api, const Description& d, const Matrix& a, const Matrix& b,
                     const Matrix& c, const Matrix& to, Product& p) {
  p.a = a;
  p.b = b;
  p.c = c;
  p.d = to;
  p.trans_a = d.trans_a != CUBLAS_OP_N;
  p.trans_b = d.trans_b != CUBLAS_OP_N;
  p.m = p.trans_a ? a.columns : a.rows;
  p.k = p.trans_a ? a.rows : a.columns;
  p.n = p.trans_b ? b.rows : b.columns;
  const std::int64_t k_of_b = p.trans_b ? b.columns : b.rows;
  if (!a.consistent() || !b.consistent() || !c.consistent() || !to.consistent())
    return bad(api, CUBLAS_STATUS_INVALID_VALUE,
               "a matrix has no elements or too small a leading dimension");
  if (k_of_b != p.k || to.rows != p.m || to.columns != p.n || c.rows != p.m || c.columns != p.n) {
    return bad(api, CUBLAS_STATUS_INVALID_VALUE,
               text("op(A) %ld x %ld, op(B) %ld x %ld, C %ld x %ld, D %ld x %ld",
                    static_cast<long>(p.m), static_cast<long>(p.k), static_cast<long>(k_of_b),
                    static_cast<long>(p.n), static_cast<long>(c.rows), static_cast<long>(c.columns),
                    static_cast<long>(to.rows), static_cast<long>(to.columns)));
  }
  if (a.batches != to.batches || b.batches != to.batches || c.batches != to.batches)
    return bad(api, CUBLAS_STATUS_INVALID_VALUE, "the batch counts differ");
  if (!known(a.type) || !known(b.type) || !known(c.type) || !known(to.type) || a.type != b.type ||
      c.type != to.type || (to.type != a.type && to.type != CUDA_R_32F) || d.scale != CUDA_R_32F ||
      (d.compute != CUBLAS_COMPUTE_32F && d.compute != CUBLAS_COMPUTE_32F_PEDANTIC &&
       d.compute != CUBLAS_COMPUTE_32F_FAST_TF32 && d.compute != CUBLAS_COMPUTE_32F_FAST_16F &&
       d.compute != CUBLAS_COMPUTE_32F_FAST_16BF)) {
    return bad(api, CUBLAS_STATUS_NOT_SUPPORTED,
               text("types A %d, B %d, C %d, D %d, scale %d, compute %d", static_cast<int>(a.type),
                    static_cast<int>(b.type), static_cast<int>(c.type), static_cast<int>(to.type),
                    static_cast<int>(d.scale), static_cast<int>(d.compute)));
  }
  if (d.pointer_mode != CUBLASLT_POINTER_MODE_HOST)
    return bad(api, CUBLAS_STATUS_NOT_SUPPORTED,
               "softcuda takes alpha and beta from the host only");
  const std::uint32_t extra =
      d.epilogue & ~static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_RELU |
                                               CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_GELU);
  if (extra != 0) return bad(api, CUBLAS_STATUS_NOT_SUPPORTED, text("epilogue %u", d.epilogue));
  p.epilogue = d.epilogue;
  p.bias = d.bias;
  p.bias_type = d.bias_type < 0 ? to.type : static_cast<cudaDataType_t>(d.bias_type);
  p.bias_stride = d.bias_stride;
  if ((p.epilogue & CUBLASLT_EPILOGUE_BIAS) && p.bias_type != to.type &&
      !(to.type == CUDA_R_32F && false)) {
    return bad(
        api, CUBLAS_STATUS_NOT_SUPPORTED,
        text("bias type %d with D %d", static_cast<int>(p.bias_type), static_cast<int>(to.type)));
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

// ---- cuBLASLt.

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_unknown";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
std::size_t cublasLtGetVersion() { return 130000; }
std::size_t cublasLtGetCudartVersion() { return 13000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (!handle) return bad("cublasLtCreate", CUBLAS_STATUS_INVALID_VALUE, "null pointer");
  if (softcuda::device_state("cublasLtCreate") != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(lt_handles.add(new int(0)));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!lt_handles.remove(handle))
    return bad("cublasLtDestroy", CUBLAS_STATUS_NOT_INITIALIZED, "that is not a handle");
  if (softcuda::device_state("cublasLtDestroy") == cudaErrorCudartUnloading)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  if (!layout)
    return bad("cublasLtMatrixLayoutCreate", CUBLAS_STATUS_INVALID_VALUE, "null pointer");
  auto* const made = new Matrix;
  made->type = type;
  made->rows = static_cast<std::int64_t>(rows);
  made->columns = static_cast<std::int64_t>(columns);
  made->leading = leading;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(layouts.add(made));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  if (!layouts.remove(layout))
    return bad("cublasLtMatrixLayoutDestroy", CUBLAS_STATUS_INVALID_VALUE, "that is not a layout");
  delete reinterpret_cast<Matrix*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* from, std::size_t bytes) {
  const char* const api = "cublasLtMatrixLayoutSetAttribute";
  if (!layouts.has(layout)) return bad(api, CUBLAS_STATUS_INVALID_VALUE, "that is not a layout");
  Matrix& matrix = *reinterpret_cast<Matrix*>(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return set_to(api, matrix.type, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return set_to(api, matrix.rows, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return set_to(api, matrix.columns, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD: return set_to(api, matrix.leading, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set_to(api, matrix.batches, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set_to(api, matrix.batch_stride, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: {
      std::int32_t order = 0;
      const cublasStatus_t status = set_to(api, order, from, bytes);
      if (status != CUBLAS_STATUS_SUCCESS) return status;
      if (order != CUBLASLT_ORDER_COL && order != CUBLASLT_ORDER_ROW)
        return bad(api, CUBLAS_STATUS_NOT_SUPPORTED, text("order %d", order));
      matrix.row_major = order == CUBLASLT_ORDER_ROW;
      return CUBLAS_STATUS_SUCCESS;
    }
    default:
      return bad(api, CUBLAS_STATUS_NOT_SUPPORTED,
                 text("attribute %d", static_cast<int>(attribute)));
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (!description)
    return bad("cublasLtMatmulDescCreate", CUBLAS_STATUS_INVALID_VALUE, "null pointer");
  auto* const made = new Description;
  made->compute = compute;
  made->scale = scale;
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(descriptions.add(made));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  if (!descriptions.remove(description))
    return bad("cublasLtMatmulDescDestroy", CUBLAS_STATUS_INVALID_VALUE,
               "that is not a description");
  delete reinterpret_cast<Description*>(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, std::size_t bytes) {
  const char* const api = "cublasLtMatmulDescSetAttribute";
  if (!descriptions.has(description))
    return bad(api, CUBLAS_STATUS_INVALID_VALUE, "that is not a description");
  Description& d = *reinterpret_cast<Description*>(description);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return set_to(api, d.compute, from, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return set_to(api, d.scale, from, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return set_to(api, d.pointer_mode, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return set_to(api, d.trans_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set_to(api, d.trans_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set_to(api, d.epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set_to(api, d.bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return set_to(api, d.bias_stride, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set_to(api, d.bias_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return CUBLAS_STATUS_SUCCESS;
    default:
      return bad(api, CUBLAS_STATUS_NOT_SUPPORTED,
                 text("attribute %d", static_cast<int>(attribute)));
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(preferences.add(new Preference));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  if (!preferences.remove(preference))
    return bad("cublasLtMatmulPreferenceDestroy", CUBLAS_STATUS_INVALID_VALUE,
               "that is not a preference");
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, std::size_t bytes) {
  const char* const api = "cublasLtMatmulPreferenceSetAttribute";
  if (!preferences.has(preference))
    return bad(api, CUBLAS_STATUS_INVALID_VALUE, "that is not a preference");
  Preference& p = *reinterpret_cast<Preference*>(preference);
  const auto alignment = [&](int which) {
    std::uint32_t value = 0;
    const cublasStatus_t status = set_to(api, value, from, bytes);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (value == 0 || (value & (value - 1)) != 0)
      return bad(api, CUBLAS_STATUS_INVALID_VALUE, text("alignment %u", value));
    p.alignment[which] = value;
    return CUBLAS_STATUS_SUCCESS;
  };
  std::uint32_t ignored = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set_to(api, p.workspace, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return alignment(0);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return alignment(1);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return alignment(2);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return alignment(3);
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set_to(api, ignored, from, bytes);
    default: return CUBLAS_STATUS_SUCCESS;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  const char* const api = "cublasLtMatmulAlgoGetHeuristic";
  if (found) *found = 0;
  if (!lt_handles.has(handle))
    return bad(api, CUBLAS_STATUS_NOT_INITIALIZED, "that is not a handle");
  if (!descriptions.has(description) || !layouts.has(a) || !layouts.has(b) || !layouts.has(c) ||
      !layouts.has(d) || !preferences.has(preference) || requested < 1 || !results || !found) {
    return bad(api, CUBLAS_STATUS_INVALID_VALUE, "a null or destroyed object");
  }
  Product product;
  const cublasStatus_t status =
      shape(api, *reinterpret_cast<Description*>(description), *reinterpret_cast<Matrix*>(a),
            *reinterpret_cast<Matrix*>(b), *reinterpret_cast<Matrix*>(c),
            *reinterpret_cast<Matrix*>(d), product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Preference& p = *reinterpret_cast<Preference*>(preference);
  Algorithm algorithm{algorithm_magic,
                      {p.alignment[0], p.alignment[1], p.alignment[2], p.alignment[3]},
                      p.workspace};
  std::memset(&results[0], 0, sizeof results[0]);
  static_assert(sizeof algorithm <= sizeof results[0].algo);
  std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
  results[0].workspaceSize = p.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* pa, cublasLtMatrixLayout_t a,
                              const void* pb, cublasLtMatrixLayout_t b, const void* beta,
                              const void* pc, cublasLtMatrixLayout_t c, void* pd,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  const char* const api = "cublasLtMatmul";
  if (!lt_handles.has(handle))
    return bad(api, CUBLAS_STATUS_NOT_INITIALIZED, "that is not a handle");
  if (!descriptions.has(description) || !layouts.has(a) || !layouts.has(b) || !layouts.has(c) ||
      !layouts.has(d) || !alpha || !beta)
    return bad(api, CUBLAS_STATUS_INVALID_VALUE, "a null or destroyed object");
  Product p;
  const cublasStatus_t status =
      shape(api, *reinterpret_cast<Description*>(description), *reinterpret_cast<Matrix*>(a),
            *reinterpret_cast<Matrix*>(b), *reinterpret_cast<Matrix*>(c),
            *reinterpret_cast<Matrix*>(d), p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  std::memcpy(&p.alpha, alpha, 4);
  std::memcpy(&p.beta, beta, 4);
  p.pa = pa;
  p.pb = pb;
  p.pc = pc;
  p.pd = pd;
  if (p.beta != 0 && pc == pd && (p.c.leading != p.d.leading || p.c.row_major != p.d.row_major))
    return bad(api, CUBLAS_STATUS_INVALID_VALUE, "C is D, but their layouts differ");
  if (algo) {
    Algorithm algorithm;
    std::memcpy(&algorithm, algo, sizeof algorithm);
    if (algorithm.magic != algorithm_magic)
      return bad(api, CUBLAS_STATUS_INVALID_VALUE, "that algorithm is not of the heuristic");
    const void* const pointers[] = {pa, pb, pc, pd};
    for (int i = 0; i < 4; ++i) {
      if (reinterpret_cast<std::uintptr_t>(pointers[i]) % algorithm.alignment[i] != 0) {
        return bad(api, CUBLAS_STATUS_NOT_SUPPORTED,
                   text("%c at %p, the algorithm was chosen for an alignment of %u bytes",
                        "ABCD"[i], pointers[i], algorithm.alignment[i]));
      }
    }
    if (workspace_bytes < algorithm.workspace)
      return bad(api, CUBLAS_STATUS_INVALID_VALUE,
                 text("a workspace of %zu bytes, the algorithm needs %lu", workspace_bytes,
                      algorithm.workspace));
  }
  if (workspace_bytes && reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
    return bad(api, CUBLAS_STATUS_INVALID_VALUE,
               text("the workspace at %p is not aligned to 256 bytes", workspace));
  p.workspace = workspace;
  p.workspace_bytes = workspace_bytes;
  return submit(api, p, stream);
}

// ---- cuBLAS.

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
