#include "ops/attention/attention_wgmma.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

#include "ops/attention/attention_device_tiles.hpp"

namespace katt::attention::impl {

Variant<Kokkos::Cuda, ForwardArgs> wgmma_variant() {
  return {
      .name = "flash_wgmma",
      .description = "flash on tensor cores: wgmma, cp.async, a warpgroup that loads",
      .tiles = WgmmaTiles::all(),
      .supports =
          [](const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile) {
            return args.q.dtype == Dtype::f16 ? wgmma_supports<f16>(exec, args, tile)
                                              : wgmma_supports<bf16>(exec, args, tile);
          },
      .workspace_bytes = [](const Kokkos::Cuda&, const ForwardArgs&,
                            Tile) { return std::size_t{0}; },
      .run =
          [](const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile, Workspace) {
            if (args.q.dtype == Dtype::f16) {
              wgmma_forward<f16>(exec, args, tile);
            } else {
              wgmma_forward<bf16>(exec, args, tile);
            }
          },
  };
}

}  // namespace katt::attention::impl

#endif
