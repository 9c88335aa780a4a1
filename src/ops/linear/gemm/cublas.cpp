#include "ops/linear/gemm/cublas.hpp"

#if defined(KATT_HAS_CUDA)

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "core/parts.hpp"
#include "ops/linear/gemm/column_major.hpp"
#include "ops/linear/gemm/naive.hpp"
#include "tile/cuda/cuda_launch.hpp"

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

cudaDataType_t type_of(Dtype dtype) {
  return dtype == Dtype::f32 ? CUDA_R_32F : dtype == Dtype::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// A matrix of every product, `stride` elements apart.
MatrixLayout layout_of(const ColumnMajor& matrix, Dtype dtype, std::int64_t count,
                       std::int64_t stride, const std::string& label) {
  cublasLtMatrixLayout_t created = nullptr;
  check(
      cublasLtMatrixLayoutCreate(&created, type_of(dtype), static_cast<std::uint64_t>(matrix.rows),
                                 static_cast<std::uint64_t>(matrix.columns), matrix.leading),
      label);
  MatrixLayout layout(created);
  if (count == 1) return layout;
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
    check(cublasLtMatrixLayoutSetAttribute(created, attribute, &value, sizeof(value)), label);
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(count));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  return layout;
}

/// The largest power of two up to 256 of which the addresses of a matrix of every product are
/// multiples.
std::uint32_t alignment_of(const void* data, Dtype dtype, std::int64_t stride) {
  const auto bits = reinterpret_cast<std::uintptr_t>(data) |
                    (static_cast<std::uintptr_t>(stride) * size_of(dtype));
  std::uint32_t alignment = 256;
  while (bits % alignment != 0) alignment /= 2;
  return alignment;
}

/// Alignments of A, B and C in bytes.
struct Alignments {
  std::uint32_t a, b, c;

  Alignments(const GemmArgs& args, const GemmBatch& batch)
      : a(alignment_of(args.a.data, args.a.dtype, batch.stride_a)),
        b(alignment_of(args.b.data, args.b.dtype, batch.stride_b)),
        c(alignment_of(args.c.data, args.c.dtype, batch.stride_c)) {}
};

/// Key of a plan, which equal products share: extents, distances, dtypes, alignments.
using Key = std::array<std::int64_t, 21>;

Key key_of(const GemmArgs& args, const ColumnMajorProduct& product, const GemmBatch& batch) {
  Key key{};
  std::size_t next = 0;
  for (const ColumnMajor& matrix : {product.first, product.second, product.result}) {
    for (const std::int64_t value : {matrix.rows, matrix.columns, matrix.leading}) {
      key[next++] = value;
    }
  }
  for (const Dtype dtype : {args.a.dtype, args.c.dtype}) {
    key[next++] = static_cast<std::int64_t>(dtype);
  }
  for (const bool flag : {product.trans_first, product.trans_second, bool(args.bias)}) {
    key[next++] = flag ? 1 : 0;
  }
  const Alignments aligned(args, batch);
  for (const std::uint32_t alignment : {aligned.a, aligned.b, aligned.c}) key[next++] = alignment;
  for (const std::int64_t value : {batch.count, batch.stride_a, batch.stride_b, batch.stride_c}) {
    key[next++] = value;
  }
  return key;
}

/// A product as the library is asked for it: its descriptors, and the algorithm that the heuristic
/// chose. Making one costs as much host time as a small product runs.
struct Plan {
  Operation operation;
  MatrixLayout first, second, result;
  cublasLtMatmulAlgo_t algorithm{};

  Plan(cublasLtHandle_t handle, const GemmArgs& args, const ColumnMajorProduct& product,
       const GemmBatch& batch, std::size_t workspace_bytes, const std::string& label) {
    cublasLtMatmulDesc_t created = nullptr;
    check(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F), label);
    operation.reset(created);
    set(CUBLASLT_MATMUL_DESC_TRANSA, product.trans_first ? CUBLAS_OP_T : CUBLAS_OP_N, label);
    set(CUBLASLT_MATMUL_DESC_TRANSB, product.trans_second ? CUBLAS_OP_T : CUBLAS_OP_N, label);
    if (args.bias) {  // an element a row of Cᵀ
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, label);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.data, label);
    }
    first = layout_of(product.first, args.b.dtype, batch.count, batch.stride_b, label);
    second = layout_of(product.second, args.a.dtype, batch.count, batch.stride_a, label);
    result = layout_of(product.result, args.c.dtype, batch.count, batch.stride_c, label);
    choose(handle, Alignments(args, batch), workspace_bytes, label);
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value, const std::string& label) {
    check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)), label);
  }

 private:
  void choose(cublasLtHandle_t handle, const Alignments& aligned, std::size_t workspace_bytes,
              const std::string& label) {
    cublasLtMatmulPreference_t created = nullptr;
    check(cublasLtMatmulPreferenceCreate(&created), label);
    const Preference preference(created);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(
          cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
          label);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // Parts of a split sum are added in f32, not in the dtype of C, which is rounded once.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned.b);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned.a);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned.c);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned.c);
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle, operation.get(), first.get(), second.get(),
                                         result.get(), result.get(), preference.get(), 1, &best,
                                         &found),
          label);
    if (found == 0) throw std::runtime_error(label + ": cuBLASLt has no algorithm");
    algorithm = best.algo;
  }
};

/// The library on a device: its handle, and the products that it has been asked for.
struct Library {
  Handle handle;
  std::map<Key, Plan> plans;
};

/// Products whose plans are kept; beyond that all plans are made again.
constexpr std::size_t most_plans = 4096;

/// The address of a workspace is a multiple of this (cublasLtMatmul, "workspace"). One of Kokkos
/// lies 128 bytes behind such a multiple.
constexpr std::size_t workspace_alignment = 256;

/// Workspace of the library in bytes, as its documentation advises.
std::size_t library_workspace_bytes(const Kokkos::Cuda& exec) {
  return std::size_t{exec.cuda_device_prop().major >= 9 ? 32U : 4U} << 20;
}

/// All devices. The lock is held while a plan is in use: the place of a bias is part of it.
std::mutex mutex;
std::map<int, Library> libraries;

/// The library on the current device. Destroyed before Kokkos leaves it.
Library& library_of(int device, const std::string& label) {
  Library& library = libraries[device];
  if (!library.handle) {
    if (libraries.size() == 1) Kokkos::push_finalize_hook([] { libraries.clear(); });
    cublasLtHandle_t created = nullptr;
    check(cublasLtCreate(&created), label);
    library.handle.reset(created);
  }
  return library;
}

}  // namespace

bool cublas_takes(const GemmArgs& args) {
  // Rows that share memory, as repeated ones, have no leading dimension.
  const auto is_apart = [](const auto& matrix) {
    return matrix.extent[0] <= 1 || matrix.stride[0] >= matrix.extent[1];
  };
  return is_apart(args.a) && is_apart(args.b) && is_apart(args.c) && args.c.size() > 0 &&
         args.k() > 0 && args.a.dtype == args.b.dtype &&
         (args.c.dtype == args.a.dtype || args.c.dtype == Dtype::f32) &&
         (args.bias.size() == 0 || args.bias.dtype == args.c.dtype);
}

std::size_t cublas_workspace_bytes(const Kokkos::Cuda& exec) {
  return library_workspace_bytes(exec) + workspace_alignment;
}

void cublas_gemm(const Kokkos::Cuda& exec, const GemmArgs& args, Workspace workspace,
                 const char* label, const GemmBatch& batch) {
  tile::cuda_check(cudaSetDevice(exec.cuda_device()), label);
  const std::size_t workspace_bytes = library_workspace_bytes(exec);
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data);
  void* aligned = reinterpret_cast<void*>(aligned_bytes(begin, workspace_alignment));
  const ColumnMajorProduct product(args);
  const Key key = key_of(args, product, batch);
  const std::lock_guard lock(mutex);
  Library& library = library_of(exec.cuda_device(), label);
  if (library.plans.size() >= most_plans) library.plans.clear();
  auto found = library.plans.find(key);
  if (found == library.plans.end()) {
    Plan made(library.handle.get(), args, product, batch, workspace_bytes, label);
    found = library.plans.emplace(key, std::move(made)).first;
  }
  Plan& plan = found->second;
  if (args.bias) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.data, label);

  std::uint64_t id = 0;
  Kokkos::Tools::beginParallelFor(label, Kokkos::Tools::Experimental::device_id(exec), &id);
  check(cublasLtMatmul(library.handle.get(), plan.operation.get(), &args.alpha, args.b.data,
                       plan.first.get(), args.a.data, plan.second.get(), &args.beta, args.c.data,
                       plan.result.get(), args.c.data, plan.result.get(), &plan.algorithm, aligned,
                       workspace_bytes, exec.cuda_stream()),
        label);
  Kokkos::Tools::endParallelFor(id);
}

}  // namespace katt::linear::impl

namespace katt::linear {

namespace {

GemmArgs moved(GemmArgs args, const BatchAxis& axis, std::int64_t steps) {
  args.a = katt::impl::from_element(args.a, steps * axis.a);
  args.b = katt::impl::from_element(args.b, steps * axis.b);
  args.c = katt::impl::from_element(args.c, steps * axis.c);
  return args;
}

/// Calls f(args) for every product along axes[first], axes[first + 1], …
template <class F>
void for_each_product(const GemmArgs& args, const std::vector<BatchAxis>& axes, std::size_t first,
                      const F& f) {
  if (first == axes.size()) return f(args);
  for (std::int64_t i = 0; i < axes[first].count; ++i) {
    for_each_product(moved(args, axes[first], i), axes, first + 1, f);
  }
}

}  // namespace

std::vector<BatchAxis> joined(const std::vector<BatchAxis>& axes) {
  std::vector<BatchAxis> found;
  for (const BatchAxis& axis : axes) {
    if (axis.count == 1) continue;
    if (!found.empty()) {
      BatchAxis& outer = found.back();
      if (outer.a == axis.count * axis.a && outer.b == axis.count * axis.b &&
          outer.c == axis.count * axis.c) {
        outer = {outer.count * axis.count, axis.a, axis.b, axis.c};
        continue;
      }
    }
    found.push_back(axis);
  }
  return found;
}

std::size_t batched_gemm_workspace_bytes(const Kokkos::Cuda& exec, const GemmArgs& args) {
  return impl::cublas_takes(args) ? impl::cublas_workspace_bytes(exec)
                                  : naive_gemm_workspace_bytes(exec, args);
}

void batched_gemm(const Kokkos::Cuda& exec, const GemmArgs& args,
                  const std::vector<BatchAxis>& axes, Workspace workspace, const char* label) {
  std::vector<BatchAxis> outer = joined(axes);
  if (!impl::cublas_takes(args)) {  // nothing is summed up or written, or rows share memory
    return for_each_product(args, outer, 0, [&](const GemmArgs& product) {
      naive_gemm(exec, product, workspace, label);
    });
  }
  impl::GemmBatch batch;
  const auto longest =
      std::max_element(outer.begin(), outer.end(),
                       [](const BatchAxis& x, const BatchAxis& y) { return x.count < y.count; });
  if (longest != outer.end()) {
    batch = {longest->count, longest->a, longest->b, longest->c};
    outer.erase(longest);
  }
  for_each_product(args, outer, 0, [&](const GemmArgs& product) {
    impl::cublas_gemm(exec, product, workspace, label, batch);
  });
}

}  // namespace katt::linear

#endif
