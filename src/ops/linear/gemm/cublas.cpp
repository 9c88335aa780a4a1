#include "ops/linear/gemm/cublas.hpp"

#if defined(KATT_HAS_CUDA)

#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "core/dtype.hpp"
#include "ops/linear/gemm/column_major.hpp"
#include "tile/cuda_launch.hpp"

namespace katt::linear::impl {

namespace {

void check(cublasStatus_t status, const std::string& label) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(label + ": cuBLASLt: " + cublasLtGetStatusString(status));
  }
}

/// An object of the library that is made by Create and given back by Destroy.
template <class Object, auto Destroy>
struct Destroyer {
  using pointer = Object;
  void operator()(Object object) const { Destroy(object); }
};
template <class Object, auto Destroy>
using Owned = std::unique_ptr<Object, Destroyer<Object, Destroy>>;

using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// The library's handle for the current device, which threads may share; destroyed before Kokkos
/// leaves the device.
cublasLtHandle_t handle_of(int device, const std::string& label) {
  static std::mutex mutex;
  static std::map<int, Handle> handles;
  const std::lock_guard lock(mutex);
  Handle& handle = handles[device];
  if (!handle) {
    if (handles.size() == 1) Kokkos::push_finalize_hook([] { handles.clear(); });
    cublasLtHandle_t created = nullptr;
    check(cublasLtCreate(&created), label);
    handle.reset(created);
  }
  return handle.get();
}

cudaDataType_t type_of(Dtype dtype) {
  return dtype == Dtype::f32 ? CUDA_R_32F : dtype == Dtype::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

MatrixLayout layout_of(const ColumnMajor& matrix, Dtype dtype, const std::string& label) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<std::uint64_t>(matrix.rows),
                                   static_cast<std::uint64_t>(matrix.columns), matrix.leading),
        label);
  return MatrixLayout(layout);
}

/// The largest power of two up to 256 of which the address is a multiple.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

}  // namespace

bool cublas_takes(const GemmArgs& args) {
  return args.c.size() > 0 && args.k() > 0 && args.a.dtype == args.b.dtype &&
         (args.c.dtype == args.a.dtype || args.c.dtype == Dtype::f32) &&
         (args.bias.size() == 0 || args.bias.dtype == args.c.dtype);
}

void cublas_gemm(const Kokkos::Cuda& exec, const GemmArgs& args, Workspace workspace,
                 const char* label) {
  tile::cuda_check(cudaSetDevice(exec.cuda_device()), label);
  cublasLtHandle_t const handle = handle_of(exec.cuda_device(), label);

  cublasLtMatmulDesc_t created_operation = nullptr;
  check(cublasLtMatmulDescCreate(&created_operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), label);
  const Operation operation(created_operation);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)), label);
  };
  const ColumnMajorProduct product(args);
  set(CUBLASLT_MATMUL_DESC_TRANSA, product.trans_first ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, product.trans_second ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (args.bias) {  // an element a row of Cᵀ
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.data);
  }
  const MatrixLayout first = layout_of(product.first, args.b.dtype, label);
  const MatrixLayout second = layout_of(product.second, args.a.dtype, label);
  const MatrixLayout result = layout_of(product.result, args.c.dtype, label);

  cublasLtMatmulPreference_t created_preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&created_preference), label);
  const Preference preference(created_preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
          label);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, cublas_workspace_bytes);
  // Parts of a split sum are added in f32, not in the dtype of C, which is rounded once.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(args.b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(args.a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(args.c.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(args.c.data));

  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, operation.get(), first.get(), second.get(),
                                       result.get(), result.get(), preference.get(), 1, &best,
                                       &found),
        label);
  if (found == 0) throw std::runtime_error(std::string(label) + ": cuBLASLt has no algorithm");

  std::uint64_t id = 0;
  Kokkos::Tools::beginParallelFor(label, Kokkos::Tools::Experimental::device_id(exec), &id);
  check(
      cublasLtMatmul(handle, operation.get(), &args.alpha, args.b.data, first.get(), args.a.data,
                     second.get(), &args.beta, args.c.data, result.get(), args.c.data, result.get(),
                     &best.algo, workspace.data, cublas_workspace_bytes, exec.cuda_stream()),
      label);
  Kokkos::Tools::endParallelFor(id);
}

}  // namespace katt::linear::impl

#endif
