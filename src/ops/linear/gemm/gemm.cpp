#include "ops/linear/gemm/gemm.hpp"

#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/linear/gemm/bf16.hpp"
#include "ops/linear/gemm/cublas.hpp"
#include "ops/linear/gemm/host.hpp"
#include "ops/linear/gemm/inner/products.hpp"
#include "ops/linear/gemm/library.hpp"
#include "ops/linear/gemm/outer/few_rows.hpp"
#include "ops/linear/gemm/outer/low_rank.hpp"
#include "tile/vec/vec.hpp"

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
  if (!args.is_gated()) return;
  expect("n of gate", args.gate.extent[0], args.n());
  expect("k of gate", args.gate.extent[1], args.k());
  expect("distance of the rows of gate", args.gate.stride[0], args.b.stride[0]);
  if (args.gate.dtype != args.b.dtype || args.trans_a || !args.trans_b || args.beta != 0.0F ||
      args.bias) {
    throw InputError("gemm: gate: expected the dtype of b, trans_b alone, neither beta nor bias");
  }
}

template <class Exec>
GemmEngine resolved(const GemmArgs& args, GemmEngine engine) {
  return engine == GemmEngine::fastest ? fastest_engine<Exec>(args) : engine;
}

}  // namespace

template <class Exec>
GemmEngine fastest_engine(const GemmArgs& args) {
  if constexpr (is_host_v<Exec>) {
    using tile::bf16_panels::UnitName;
    // AMX multiplies sixteen rows at a time, and packs both factors: with a few tokens dot products
    // win in x · weightᵀ, widened factors in the gradients.
    constexpr std::int64_t few = 4;
    constexpr std::int64_t few_of_gradients = 12;
    UnitName unit = tile::bf16_panels::unit();
    if (unit == UnitName::amx) {
      const bool is_dx = impl::is_few_rows(args) && args.m() <= few_of_gradients;
      const bool is_dweight = impl::is_low_rank(args) && args.k() <= few_of_gradients;
      if (is_dx || is_dweight) return GemmEngine::widened;
      if (impl::is_inner(args) && args.m() <= few) {
        unit = tile::bf16_panels::refusal(UnitName::dot).empty() ? UnitName::dot : UnitName::none;
      }
    }
    if (unit != UnitName::none && impl::bf16_takes(args)) {
      return unit == UnitName::amx ? GemmEngine::amx : GemmEngine::avx512_bf16;
    }
  }
#if defined(KATT_HAS_CUDA)
  if (!is_host_v<Exec> && impl::cublas_takes(args)) return GemmEngine::cublaslt;
#endif
  return GemmEngine::widened;
}

template <class Exec>
Status gemm_supports(const GemmArgs& args, GemmEngine engine) {
  if (args.is_gated() && !is_host_v<Exec>) return Status::skipped("takes no gate");
  if (engine == GemmEngine::fastest || engine == GemmEngine::widened) return Status::ok();
  if ((engine == GemmEngine::cublaslt) == is_host_v<Exec>) {
    return Status::skipped("is not of the backend " +
                           std::string(katt::name_of(backend_of<Exec>())));
  }
#if defined(KATT_HAS_CUDA)
  if (engine == GemmEngine::cublaslt) {
    return impl::cublas_takes(args)
               ? Status::ok()
               : Status::skipped(
                     "takes a product of operands of one dtype, that is not empty, into "
                     "the same or f32, and a bias of its dtype");
  }
#endif
  if (std::string reason = tile::bf16_panels::refusal(impl::unit_of(engine)); !reason.empty()) {
    return Status::skipped(std::move(reason));
  }
  return impl::bf16_takes(args)
             ? Status::ok()
             : Status::skipped("takes products of two bf16 matrices that are not empty");
}

template <class Exec>
std::size_t gemm_workspace_bytes(const Exec& exec, const GemmArgs& args, GemmEngine engine) {
  check(args);
  const GemmEngine chosen = resolved<Exec>(args, engine);
  if constexpr (is_host_v<Exec>) {
    if (chosen != GemmEngine::widened) {
      return impl::bf16_gemm_workspace_bytes(exec, args, impl::unit_of(chosen));
    }
    return impl::host_gemm_workspace_bytes(exec, args);
  } else {
#if defined(KATT_HAS_CUDA)
    if (chosen == GemmEngine::cublaslt) return impl::cublas_workspace_bytes(exec);
#endif
    return impl::library_gemm_workspace_bytes<Exec>(args, impl::Panels{});
  }
}

template <class Exec>
std::string gemm_engine(const Exec& /*exec*/, const GemmArgs& args, GemmEngine engine) {
  switch (resolved<Exec>(args, engine)) {
    case GemmEngine::amx: return "amx";
    case GemmEngine::avx512_bf16: return "avx512_bf16";
    case GemmEngine::cublaslt: return "cublaslt";
    default: return is_host_v<Exec> ? tile::vector_name : "blas";
  }
}

template <class Exec>
void gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label,
          GemmEngine engine) {
  const GemmEngine chosen = resolved<Exec>(args, engine);
  if (const Status status = gemm_supports<Exec>(args, chosen); !status.is_ok()) {
    throw InputError("gemm: " + gemm_engine(exec, args, chosen) + ": " + status.reason());
  }
  if (const std::size_t needed = gemm_workspace_bytes(exec, args, chosen);
      workspace.bytes < needed) {
    throw InputError("gemm: workspace holds " + std::to_string(workspace.bytes) +
                     " bytes, expected " + std::to_string(needed));
  }
  if constexpr (is_host_v<Exec>) {
    if (args.m() == 0 || args.n() == 0) return;
    if (chosen != GemmEngine::widened) {
      return impl::bf16_gemm(exec, args, impl::unit_of(chosen), workspace, label);
    }
    impl::host_gemm(exec, args, workspace, label);
  } else {
#if defined(KATT_HAS_CUDA)
    if (chosen == GemmEngine::cublaslt) return impl::cublas_gemm(exec, args, workspace, label);
#endif
    impl::library_gemm(exec, args, impl::Panels{}, workspace, label);
  }
}

#define KATT_INSTANTIATE_GEMM(Exec)                                                          \
  template GemmEngine fastest_engine<Exec>(const GemmArgs&);                                 \
  template Status gemm_supports<Exec>(const GemmArgs&, GemmEngine);                          \
  template std::size_t gemm_workspace_bytes<Exec>(const Exec&, const GemmArgs&, GemmEngine); \
  template std::string gemm_engine<Exec>(const Exec&, const GemmArgs&, GemmEngine);          \
  template void gemm<Exec>(const Exec&, const GemmArgs&, Workspace, const char*, GemmEngine);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_GEMM)

}  // namespace katt::linear
