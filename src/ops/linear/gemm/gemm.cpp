#include "ops/linear/gemm/gemm.hpp"

#include <string>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/linear/gemm/cublas.hpp"
#include "ops/linear/gemm/host.hpp"
#include "ops/linear/gemm/library.hpp"

namespace katt::linear {

namespace {

void check(const GemmArgs& args) {
  const auto expect = [](const char* name, std::int64_t got, std::int64_t wanted) {
    if (got == wanted) return;
    throw InputError("gemm: " + std::string(name) + ": holds " + std::to_string(got) +
                     ", expected " + std::to_string(wanted));
  };
  expect("m of a", args.a.extent[args.trans_a ? 1 : 0], args.m());
  expect("n of b", args.b.extent[args.trans_b ? 0 : 1], args.n());
  expect("k of b", args.b.extent[args.trans_b ? 1 : 0], args.k());
  if (args.bias) expect("n of bias", args.bias.extent[0], args.n());
}

}  // namespace

template <class Exec>
std::size_t gemm_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  check(args);
  if constexpr (is_host_v<Exec>) {
    return impl::host_gemm_workspace_bytes(exec, args);
  } else {
#if defined(KATT_HAS_CUDA)
    if (impl::cublas_takes(args)) return impl::cublas_workspace_bytes;
#endif
    return impl::library_gemm_workspace_bytes<Exec>(args, impl::Panels{});
  }
}

template <class Exec>
std::string gemm_engine(const Exec& /*exec*/, const GemmArgs& args) {
  if constexpr (is_host_v<Exec>) return impl::host_gemm_engine(args);
#if defined(KATT_HAS_CUDA)
  if (impl::cublas_takes(args)) return "cublaslt";
#endif
  return "blas";
}

template <class Exec>
void gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label) {
  if (const std::size_t needed = gemm_workspace_bytes(exec, args); workspace.bytes < needed) {
    throw InputError("gemm: workspace holds " + std::to_string(workspace.bytes) +
                     " bytes, expected " + std::to_string(needed));
  }
  if constexpr (is_host_v<Exec>) {
    impl::host_gemm(exec, args, workspace, label);
  } else {
#if defined(KATT_HAS_CUDA)
    if (impl::cublas_takes(args)) return impl::cublas_gemm(exec, args, workspace, label);
#endif
    impl::library_gemm(exec, args, impl::Panels{}, workspace, label);
  }
}

#define KATT_INSTANTIATE_GEMM(Exec)                                              \
  template std::size_t gemm_workspace_bytes<Exec>(const Exec&, const GemmArgs&); \
  template std::string gemm_engine<Exec>(const Exec&, const GemmArgs&);          \
  template void gemm<Exec>(const Exec&, const GemmArgs&, Workspace, const char*);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_GEMM)

}  // namespace katt::linear
