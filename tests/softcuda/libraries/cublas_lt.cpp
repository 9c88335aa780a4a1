#include <cstring>

#include "tests/softcuda/libraries/product.hpp"
#include "tests/softcuda/runtime/runtime.hpp"

// libcublasLt.so.13.

using softcuda::report;
using softcuda::text;
using namespace softcuda::libraries;

namespace {

// They live for ever, because calls may come while the program ends.
Alive& lt_handles = *new Alive;
Alive& layouts = *new Alive;
Alive& descriptions = *new Alive;
Alive& preferences = *new Alive;

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
  if ((p.epilogue & CUBLASLT_EPILOGUE_BIAS) && p.bias_type != to.type) {
    return bad(
        api, CUBLAS_STATUS_NOT_SUPPORTED,
        text("bias type %d with D %d", static_cast<int>(p.bias_type), static_cast<int>(to.type)));
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

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

}  // extern "C"
