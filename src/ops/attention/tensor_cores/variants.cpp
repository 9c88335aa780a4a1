#include "ops/attention/tensor_cores/variants.hpp"

#if defined(KATT_HAS_CUDA)

#include <string>
#include <vector>

#include "ops/attention/tensor_cores/presets.hpp"

namespace katt::attention::impl {

namespace {

/// The two functions of a variant for one dtype.
template <class Args>
struct Kernels {
  Status (*supports)(const Kokkos::Cuda&, const Args&, Tile);
  void (*run)(const Kokkos::Cuda&, const Args&, Tile, Workspace);
};

/// supports() of either refuses other dtypes.
template <class Args>
Variant<Kokkos::Cuda, Args> variant(const TensorCoreVariant& tiled, int rank,
                                    const std::string& description,
                                    std::size_t (*workspace_bytes)(const Args&), Kernels<Args> half,
                                    Kernels<Args> brain) {
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
      .workspace_bytes = workspace_bytes,
      .run = [of](const Kokkos::Cuda& exec, const Args& args, Tile tile,
                  Workspace workspace) { of(args).run(exec, args, tile, workspace); },
  };
}

std::size_t no_workspace(const ForwardArgs& /*args*/) { return 0; }

}  // namespace

Variant<Kokkos::Cuda, ForwardArgs> mma_variant() {
  return variant<ForwardArgs>(
      mma_on_gpus, 2, "flash on tensor cores: mma.sync, ldmatrix and cp.async", no_workspace,
      {mma_supports<f16>, mma_forward<f16>}, {mma_supports<bf16>, mma_forward<bf16>});
}

Variant<Kokkos::Cuda, ForwardArgs> wgmma_variant() {
  return variant<ForwardArgs>(wgmma_on_gpus, 3,
                              "flash on tensor cores: wgmma, cp.async, a warpgroup that loads",
                              no_workspace, {wgmma_supports<f16>, wgmma_forward<f16>},
                              {wgmma_supports<bf16>, wgmma_forward<bf16>});
}

Variant<Kokkos::Cuda, BackwardArgs> mma_backward_variant() {
  auto built = variant<BackwardArgs>(
      mma_backward_on_gpus, 2,
      "flash on tensor cores: a kernel for dQ and one for dK and dV, without atomics",
      backward_statistics_bytes, {mma_backward_supports<f16>, mma_backward<f16>},
      {mma_backward_supports<bf16>, mma_backward<bf16>});
  built.default_setting = [](const BackwardArgs& args) {
    return backward_tiles(args.head_dim()).back();
  };
  return built;
}

}  // namespace katt::attention::impl

#endif
