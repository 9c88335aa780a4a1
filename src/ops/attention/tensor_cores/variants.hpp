#pragma once

#include <cstddef>

#include "core/execution.hpp"
#include "op/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/tensor_cores/presets.hpp"

#if defined(KATT_HAS_CUDA)

/// The variants on the tensor cores of CUDA devices, for f16 and bf16.
namespace katt::attention::impl {

/// ok, or skipped: the dtype, the tile, head_dim, the alignment of a tensor, the build or the
/// device does not fit.
template <class T>
Status mma_supports(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile);
template <class T, class Rule>
void run_mma(const Kokkos::Cuda& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
             Workspace workspace);

template <class T>
Status wgmma_supports(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile);
template <class T, class Rule>
void run_wgmma(const Kokkos::Cuda& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
               Workspace workspace);

template <class T>
Status mma_backward_supports(const Kokkos::Cuda& exec, const BackwardArgs& args, Tile tile);
template <class T, class Rule>
void run_mma_backward(const Kokkos::Cuda& exec, const BackwardArgs& args, const Rule& rule,
                      Tile tile, Workspace workspace);

template <class T>
Status wgmma_backward_supports(const Kokkos::Cuda& exec, const BackwardArgs& args, Tile tile);
template <class T, class Rule>
void run_wgmma_backward(const Kokkos::Cuda& exec, const BackwardArgs& args, const Rule& rule,
                        Tile tile, Workspace workspace);

/// The two functions of a variant for one dtype.
template <class Args, class Rule>
struct TensorCoreKernels {
  Status (*supports)(const Kokkos::Cuda&, const Args&, Tile);
  void (*run)(const Kokkos::Cuda&, const Args&, const Rule&, Tile, Workspace);
};

/// supports() of either refuses other dtypes.
template <class Args, class Rule>
Variant<Kokkos::Cuda, Args> tensor_core_variant(const TensorCoreVariant& tiled, int rank,
                                                const std::string& description, const Rule& rule,
                                                const TensorCoreKernels<Args, Rule>& half,
                                                const TensorCoreKernels<Args, Rule>& brain) {
  const auto of = [half, brain](const Args& args) {
    return args.q.dtype == Dtype::f16 ? half : brain;
  };
  return {
      .name = std::string(tiled.name),
      .description = description,
      .rank = rank,
      .parameters = tile_parameters,
      .settings = settings_of(tiled.tiles()),
      .presets = tensor_core_presets<Kokkos::Cuda, Args>(tiled),
      .supports = [of](const Kokkos::Cuda& exec, const Args& args,
                       Tile tile) { return of(args).supports(exec, args, tile); },
      .run = [of, rule](const Kokkos::Cuda& exec, const Args& args, Tile tile,
                        Workspace workspace) { of(args).run(exec, args, rule, tile, workspace); },
  };
}

/// "flash_mma": mma.sync, ldmatrix and cp.async, compute capability 8.0 and later.
template <class Rule>
Variant<Kokkos::Cuda, ForwardArgs> mma_variant(const Rule& rule) {
  return tensor_core_variant<ForwardArgs, Rule>(
      mma_on_gpus, 2, "flash on tensor cores: mma.sync, ldmatrix and cp.async", rule,
      {mma_supports<f16>, run_mma<f16, Rule>}, {mma_supports<bf16>, run_mma<bf16, Rule>});
}

/// "flash_wgmma": the matrix instructions of a warpgroup, compute capability 9.0 in a build for
/// sm_90a.
template <class Rule>
Variant<Kokkos::Cuda, ForwardArgs> wgmma_variant(const Rule& rule) {
  auto built = tensor_core_variant<ForwardArgs, Rule>(
      wgmma_on_gpus, 3, "flash on tensor cores: wgmma, a warp that loads by TMA, persistent blocks",
      rule, {wgmma_supports<f16>, run_wgmma<f16, Rule>},
      {wgmma_supports<bf16>, run_wgmma<bf16, Rule>});
  built.default_setting = [](const ForwardArgs& args) {
    return Setting(wgmma_default_tile(args.head_dim()));
  };
  return built;
}

/// The backward pass of flash_wgmma. The workspace is that of flash_mma.
template <class Rule>
Variant<Kokkos::Cuda, BackwardArgs> wgmma_backward_variant(const Rule& rule) {
  auto built = tensor_core_variant<BackwardArgs, Rule>(
      wgmma_backward_on_gpus, 3,
      "flash on tensor cores: wgmma, a kernel for dQ and one for dK and dV, without atomics", rule,
      {wgmma_backward_supports<f16>, run_wgmma_backward<f16, Rule>},
      {wgmma_backward_supports<bf16>, run_wgmma_backward<bf16, Rule>});
  built.workspace_bytes = backward_statistics_bytes;
  return built;
}

/// The backward pass of flash_mma. The workspace holds RowShift and Δ of every query row.
template <class Rule>
Variant<Kokkos::Cuda, BackwardArgs> mma_backward_variant(const Rule& rule) {
  auto built = tensor_core_variant<BackwardArgs, Rule>(
      mma_backward_on_gpus, 2,
      "flash on tensor cores: a kernel for dQ and one for dK and dV, without atomics", rule,
      {mma_backward_supports<f16>, run_mma_backward<f16, Rule>},
      {mma_backward_supports<bf16>, run_mma_backward<bf16, Rule>});
  built.workspace_bytes = backward_statistics_bytes;
  built.default_setting = [](const BackwardArgs& args) {
    return backward_tiles(args.head_dim()).back();
  };
  return built;
}

}  // namespace katt::attention::impl

#endif
