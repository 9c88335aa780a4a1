#include "ops/attention/attention_mma.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

#include "ops/attention/attention_device_tiles.hpp"

namespace katt::attention::impl {

Variant<Kokkos::Cuda, ForwardArgs> mma_variant() {
  return {
      .name = "flash_mma",
      .description = "flash on tensor cores: mma.sync, ldmatrix and cp.async",
      .tiles = MmaTiles::all(),
      .supports =
          [](const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile) {
            return args.q.dtype == Dtype::f16 ? mma_supports<f16>(exec, args, tile)
                                              : mma_supports<bf16>(exec, args, tile);
          },
      .workspace_bytes = [](const Kokkos::Cuda&, const ForwardArgs&,
                            Tile) { return std::size_t{0}; },
      .run =
          [](const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile, Workspace) {
            if (args.q.dtype == Dtype::f16) {
              mma_forward<f16>(exec, args, tile);
            } else {
              mma_forward<bf16>(exec, args, tile);
            }
          },
  };
}

}  // namespace katt::attention::impl

#endif
