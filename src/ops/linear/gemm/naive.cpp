#include "ops/linear/gemm/naive.hpp"

#include <string>

#include "core/execution.hpp"
#include "ops/linear/gemm/library.hpp"

namespace katt::linear {

namespace {

bool by_library(const GemmArgs& args) { return args.a.dtype == Dtype::f32; }

}  // namespace

template <class Exec>
std::string naive_gemm_engine(const Exec& /*exec*/, const GemmArgs& args) {
  return by_library(args) ? "blas" : fastest_engine<Exec>(args).unit;
}

template <class Exec>
std::size_t naive_gemm_workspace_bytes(const Exec& exec, const GemmArgs& args) {
  return by_library(args) ? impl::library_gemm_workspace_bytes<Exec>(args, impl::whole_tensors)
                          : gemm_workspace_bytes(exec, args);
}

template <class Exec>
void naive_gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label) {
  if (by_library(args)) {
    impl::library_gemm(exec, args, impl::whole_tensors, workspace, label);
  } else {
    gemm(exec, args, workspace, label);
  }
}

void naive_gemm_batch(const Host& exec, std::int64_t count,
                      const std::function<GemmArgs(std::int64_t)>& product, Workspace workspace,
                      const char* label) {
  if (count == 0) return;
  const std::int64_t threads = exec.concurrency();
  const bool is_shared_out = count % threads == 0 || count >= 4 * threads;
  if (threads > 1 && is_shared_out && impl::library_takes(product(0))) {
    return impl::library_gemm_batch(exec, count, product, label);
  }
  for (std::int64_t i = 0; i < count; ++i) naive_gemm(exec, product(i), workspace, label);
}

#define KATT_INSTANTIATE_NAIVE_GEMM(Exec)                                              \
  template std::string naive_gemm_engine<Exec>(const Exec&, const GemmArgs&);          \
  template std::size_t naive_gemm_workspace_bytes<Exec>(const Exec&, const GemmArgs&); \
  template void naive_gemm<Exec>(const Exec&, const GemmArgs&, Workspace, const char*);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE_GEMM)

}  // namespace katt::linear
