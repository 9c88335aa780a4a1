#include "measure/device_product.hpp"

#include <limits>

#if defined(KATT_HAS_CUDA)

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/devices.hpp"
#include "core/dtype.hpp"
#include "measure/device_clock.hpp"
#include "op/reference/fill.hpp"

namespace katt::bench {
namespace {

void check_product(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("ceiling mma_bf16: ") + cudaGetErrorString(error));
  }
}
void check_product(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string("ceiling mma_bf16: cuBLASLt: ") +
                             cublasLtGetStatusString(status));
  }
}

/// An object of the library; Create makes it and Destroy releases it.
template <class Object, auto Destroy>
struct Destroyer {
  using pointer = Object;
  void operator()(Object object) const { static_cast<void>(Destroy(object)); }
};
template <class Object, auto Destroy>
using Owned = std::unique_ptr<Object, Destroyer<Object, Destroy>>;

using Memory = Owned<void*, cudaFree>;
using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class Made, class Create>
Made make(const Create& create) {
  typename Made::pointer object = nullptr;
  check_product(create(&object));
  return Made(object);
}

Memory allocate(std::size_t bytes) {
  return make<Memory>([&](void** data) { return cudaMalloc(data, bytes); });
}

}  // namespace

double product_flops_s(std::int64_t n, double least_s) {
  constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
  check_product(cudaSetDevice(devices::chosen()));
  const auto count = static_cast<std::size_t>(n * n);
  std::vector<bf16> values(count);
  const Memory a = allocate(2 * count), b = allocate(2 * count), c = allocate(2 * count);
  for (const Memory* operand : {&a, &b}) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits = testing::hash(operand == &a ? 1 : 2, i) >> 40U;
      values[i] = bf16(static_cast<float>(bits) * 0x1p-23F - 1.0F);
    }
    check_product(cudaMemcpy(operand->get(), values.data(), 2 * count, cudaMemcpyHostToDevice));
  }
  const Memory workspace = allocate(workspace_bytes);

  const auto handle = make<Handle>([](cublasLtHandle_t* made) { return cublasLtCreate(made); });
  const auto operation = make<Operation>([](cublasLtMatmulDesc_t* made) {
    return cublasLtMatmulDescCreate(made, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  });
  const cublasOperation_t transposed = CUBLAS_OP_T;  // rows of one operand against rows of the
                                                     // other
  check_product(cublasLtMatmulDescSetAttribute(operation.get(), CUBLASLT_MATMUL_DESC_TRANSA,
                                               &transposed, sizeof(transposed)));
  const auto layout = make<MatrixLayout>([&](cublasLtMatrixLayout_t* made) {
    const auto extent = static_cast<std::uint64_t>(n);
    return cublasLtMatrixLayoutCreate(made, CUDA_R_16BF, extent, extent, n);
  });
  const auto preference = make<Preference>(
      [](cublasLtMatmulPreference_t* made) { return cublasLtMatmulPreferenceCreate(made); });
  check_product(cublasLtMatmulPreferenceSetAttribute(preference.get(),
                                                     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                     &workspace_bytes, sizeof(workspace_bytes)));
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  check_product(cublasLtMatmulAlgoGetHeuristic(handle.get(), operation.get(), layout.get(),
                                               layout.get(), layout.get(), layout.get(),
                                               preference.get(), 1, &best, &found));
  if (found == 0) throw std::runtime_error("ceiling mma_bf16: cuBLASLt has no algorithm");

  DeviceClock clock;
  const float one = 1, zero = 0;
  double total_s = 0, fastest_s = std::numeric_limits<double>::infinity();
  for (int run = -1; run < 5 || total_s < least_s; ++run) {  // the first one warms up
    clock.start();
    check_product(cublasLtMatmul(handle.get(), operation.get(), &one, a.get(), layout.get(),
                                 b.get(), layout.get(), &zero, c.get(), layout.get(), c.get(),
                                 layout.get(), &best.algo, workspace.get(), workspace_bytes,
                                 nullptr));
    const double passed_s = clock.seconds();
    if (run < 0) continue;
    total_s += passed_s;
    fastest_s = std::min(fastest_s, passed_s);
  }
  const auto extent = static_cast<double>(n);
  return 2 * extent * extent * extent / fastest_s;
}

}  // namespace katt::bench

#else

namespace katt::bench {

double product_flops_s(std::int64_t /*n*/, double /*least_s*/) {
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace katt::bench

#endif
