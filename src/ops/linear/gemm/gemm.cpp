#include "ops/linear/gemm/gemm.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/check.hpp"
#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/linear/gemm/bf16/bf16.hpp"
#include "ops/linear/gemm/cublas.hpp"
#include "ops/linear/gemm/gemv.hpp"
#include "ops/linear/gemm/library.hpp"
#include "ops/linear/gemm/packed.hpp"
#include "ops/linear/gemm/shared.hpp"
#include "ops/linear/gemm/skinny.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/vec/vec.hpp"

namespace katt::linear {

namespace {

using impl::SkinnyUnit;
using tile::bf16_panels::UnitName;

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
  const auto check_scales = [&](const char* name, const ConstTensorRef<2>& matrix,
                                const ElementScales& scales) {
    if (!scales.are_there()) return;
    check_tensor("gemm", std::string(name) + ".rows", scales.rows, Dtype::f32,
                 {matrix.extent[0], 2});
    check_tensor("gemm", std::string(name) + ".columns", scales.columns, matrix.dtype,
                 {matrix.extent[1]});
    expect("distance of the rows of scales", scales.rows.stride[0], 2);
  };
  check_scales("a_scales", args.a, args.a_scales);
  check_scales("b_scales", args.b, args.b_scales);
  if (!args.is_gated()) return;
  expect("n of gate", args.gate.extent[0], args.n());
  expect("k of gate", args.gate.extent[1], args.k());
  expect("distance of the rows of gate", args.gate.stride[0], args.b.stride[0]);
  if (args.gate.dtype != args.b.dtype || args.trans_a || !args.trans_b || args.beta != 0.0F ||
      args.bias) {
    throw InputError("gemm: gate: expected the dtype of b, trans_b alone, neither beta nor bias");
  }
  if (args.b_scales.are_there()) throw InputError("gemm: b_scales: expected none with a gate");
}

bool has_no_gate(const GemmArgs& args) { return !args.is_gated(); }
bool is_plain(const GemmArgs& args) { return !args.is_gated() && !args.has_scales(); }

bool is_skinny_bf16(const GemmArgs& args) {
  return impl::bf16_takes(args) && impl::is_skinny(args);
}

/// Tokens of a skinny product.
std::int64_t tokens_of(const GemmArgs& args) { return args.trans_a ? args.k() : args.m(); }

/// True when a skinny product has so few tokens that it is faster than AMX tiles, which multiply sixteen rows at a
/// time, of factors that are packed: x · weightᵀ by dot products, else and in the gradients on the vectors.
bool is_below_tiles(const GemmArgs& args) { return tokens_of(args) <= (args.trans_b ? 4 : 12); }

/// True when a gradient of so many tokens is faster packed: with AVX2 its sums are loaded and stored more often.
bool is_faster_packed(const GemmArgs& args) {
  return tile::lanes_v<Host> == 8 && !args.trans_b && tokens_of(args) >= 48;
}

template <class Exec>
GemmEngine<Exec> library_engine() {
  return {.name = "library",
          .description = "the BLAS library's f32 product; other operands are widened by panels",
          .unit = "blas",
          .taken = "products without a gate and scales",
          .takes = is_plain,
          .rank = [](const GemmArgs&) { return -2; },
          .workspace_bytes =
              [](const Exec&, const GemmArgs& args) {
                return impl::library_gemm_workspace_bytes<Exec>(args, impl::Panels{});
              },
          .launch =
              [](const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label) {
                impl::library_gemm(exec, args, impl::Panels{}, workspace, label);
              }};
}

/// The engine of packed bf16 panels on a unit.
template <UnitName Unit>
GemmEngine<Host> bf16_engine(const char* name, const char* description) {
  return {.name = name,
          .description = description,
          .unit = tile::bf16_panels::name_of(Unit),
          .taken = "products of two bf16 matrices that are not empty",
          .takes = impl::bf16_takes,
          .rank = [](const GemmArgs&) { return tile::bf16_panels::unit() == Unit ? 4 : -1; },
          .workspace_bytes =
              [](const Host& exec, const GemmArgs& args) {
                return impl::bf16_gemm_workspace_bytes(exec, args, Unit);
              },
          .launch = [](const Host& exec, const GemmArgs& args, Workspace workspace,
                       const char* label) { impl::bf16_gemm(exec, args, Unit, workspace, label); },
          .unit_refusal = [] { return tile::bf16_panels::refusal(Unit); }};
}

/// The engine of few tokens, without its unit's name, condition and rank.
template <SkinnyUnit Unit>
GemmEngine<Host> skinny_engine() {
  return {.name = "skinny",
          .description = "at most 64 tokens: operands where they lie, each read once",
          .unit = tile::vector_name,
          .taken = "products of 1 to 64 tokens",
          .takes = impl::is_skinny,
          .rank =
              [](const GemmArgs& args) {
                if (is_faster_packed(args)) return 0;
                return is_below_tiles(args) ? 5 : 3;
              },
          .workspace_bytes =
              [](const Host& exec, const GemmArgs& args) {
                return impl::skinny_workspace_bytes(exec, args, Unit);
              },
          .launch =
              [](const Host& exec, const GemmArgs& args, Workspace workspace, const char* label) {
                impl::skinny_product(exec, args, Unit, workspace, label);
              }};
}

GemmEngine<Host> skinny_dots_engine() {
  GemmEngine<Host> engine = skinny_engine<SkinnyUnit::dots>();
  engine.name = "skinny_avx512_bf16";
  engine.description = "skinny by dot products of AVX512-BF16";
  engine.unit = tile::bf16_panels::name_of(UnitName::dot);
  engine.taken = "products of two bf16 matrices and 1 to 64 tokens";
  engine.takes = is_skinny_bf16;
  engine.rank = [](const GemmArgs& args) {
    const UnitName unit = tile::bf16_panels::unit();
    const bool beats_tiles = args.trans_b && is_below_tiles(args);
    return unit == UnitName::dot || (unit == UnitName::amx && beats_tiles) ? 6 : 0;
  };
  engine.unit_refusal = [] { return tile::bf16_panels::refusal(UnitName::dot); };
  return engine;
}

std::array<GemmEngine<Host>, 7> engines_of(const Host*) {
  return {
      GemmEngine<Host>{
          .name = "packed",
          .description = "blocks of C; a thread packs and widens what its block needs",
          .unit = tile::vector_name,
          .taken = "products without a gate",
          .takes = has_no_gate,
          .rank = [](const GemmArgs&) { return 1; },
          .workspace_bytes = impl::packed_workspace_bytes<Host>,
          .launch = impl::packed_product<Host>,
      },
      GemmEngine<Host>{
          .name = "shared",
          .description = "many rows into f32; one factor is packed once for all threads",
          .unit = tile::vector_name,
          .taken = "products of many rows into f32, and gated ones",
          .takes = impl::is_shared,
          .rank = [](const GemmArgs&) { return 2; },
          .workspace_bytes = impl::shared_workspace_bytes<Host>,
          .launch = impl::shared_product<Host>,
      },
      skinny_engine<SkinnyUnit::widened>(),
      bf16_engine<UnitName::dot>("packed_avx512_bf16",
                                 "bf16 packed into panels, dot products of AVX512-BF16"),
      skinny_dots_engine(),
      bf16_engine<UnitName::amx>("amx", "bf16 packed into tiles of AMX"),
      library_engine<Host>(),
  };
}

#if defined(KATT_HAS_CUDA)
std::array<GemmEngine<Kokkos::Cuda>, 3> engines_of(const Kokkos::Cuda*) {
  using Exec = Kokkos::Cuda;
  return {
      library_engine<Exec>(),
      {.name = "gemv",
       .description = "one token: a warp a row of the weight, which is read once",
       .unit = "cuda_cores",
       .taken =
           "x · weightᵀ of one token: operands of one dtype into it or f32, and a bias of that, "
           "without a gate and scales",
       .takes = [](const GemmArgs& args) { return is_plain(args) && impl::gemv_takes(args); },
       .rank = [](const GemmArgs&) { return 2; },
       .workspace_bytes = [](const Exec&, const GemmArgs&) { return std::size_t{0}; },
       .launch = [](const Exec& exec, const GemmArgs& args, Workspace,
                    const char* label) { impl::gemv(exec, args, label); },
       .forward_only = true},
      {.name = "cublaslt",
       .description = "cuBLASLt, tensor cores in 16 bits",
       .unit = "cublaslt",
       .taken = "a product of operands of one dtype, that is not empty, into the same or f32, and "
                "a bias of "
                "its dtype, without a gate and scales",
       .takes = [](const GemmArgs& args) { return is_plain(args) && impl::cublas_takes(args); },
       .rank = [](const GemmArgs&) { return 1; },
       .workspace_bytes = [](const Exec& exec,
                             const GemmArgs&) { return impl::cublas_workspace_bytes(exec); },
       .launch = [](const Exec& exec, const GemmArgs& args, Workspace workspace,
                    const char* label) { impl::cublas_gemm(exec, args, workspace, label); }}};
}
#endif

}  // namespace

template <class Exec>
std::span<const GemmEngine<Exec>> gemm_engines() {
  static const auto engines = engines_of(static_cast<const Exec*>(nullptr));
  return engines;
}

template <class Exec>
const GemmEngine<Exec>& fastest_engine(const GemmArgs& args, std::string_view unit) {
  const GemmEngine<Exec>* first = nullptr;
  const GemmEngine<Exec>* best = nullptr;
  int highest = 0;
  for (const auto& engine : gemm_engines<Exec>()) {
    if (!unit.empty() && unit != engine.unit) continue;
    if (first == nullptr) first = &engine;
    if (!engine.takes(args)) continue;
    const int rank = engine.rank(args);
    if (best != nullptr && rank <= highest) continue;
    if (engine.unit_refusal != nullptr && !engine.unit_refusal().empty()) continue;
    best = &engine;
    highest = rank;
  }
  return best != nullptr ? *best : *first;
}

template <class Exec>
Status gemm_supports(const GemmEngine<Exec>& engine, const GemmArgs& args) {
  if (engine.unit_refusal != nullptr) {
    if (std::string reason = engine.unit_refusal(); !reason.empty()) {
      return Status::skipped(std::move(reason));
    }
  }
  return engine.takes(args) ? Status::ok() : Status::skipped(std::string("takes ") + engine.taken);
}

template <class Exec>
std::size_t gemm_workspace_bytes(const Exec& exec, const GemmArgs& args,
                                 const GemmEngine<Exec>* engine) {
  check(args);
  return (engine != nullptr ? *engine : fastest_engine<Exec>(args)).workspace_bytes(exec, args);
}

template <class Exec>
void gemm(const Exec& exec, const GemmArgs& args, Workspace workspace, const char* label,
          const GemmEngine<Exec>* engine) {
  const GemmEngine<Exec>& chosen = engine != nullptr ? *engine : fastest_engine<Exec>(args);
  if (const Status status = gemm_supports(chosen, args); !status.is_ok()) {
    throw InputError(std::string("gemm: ") + chosen.name + ": " + status.reason());
  }
  if (const std::size_t needed = gemm_workspace_bytes(exec, args, &chosen);
      workspace.bytes < needed) {
    throw InputError("gemm: workspace holds " + std::to_string(workspace.bytes) +
                     " bytes, expected " + std::to_string(needed));
  }
  if (args.m() > 0 && args.n() > 0) chosen.launch(exec, args, workspace, label);
}

#define KATT_INSTANTIATE_GEMM(Exec)                                                         \
  template std::span<const GemmEngine<Exec>> gemm_engines<Exec>();                          \
  template const GemmEngine<Exec>& fastest_engine<Exec>(const GemmArgs&, std::string_view); \
  template Status gemm_supports<Exec>(const GemmEngine<Exec>&, const GemmArgs&);            \
  template std::size_t gemm_workspace_bytes<Exec>(const Exec&, const GemmArgs&,             \
                                                  const GemmEngine<Exec>*);                 \
  template void gemm<Exec>(const Exec&, const GemmArgs&, Workspace, const char*,            \
                           const GemmEngine<Exec>*);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_GEMM)

}  // namespace katt::linear
