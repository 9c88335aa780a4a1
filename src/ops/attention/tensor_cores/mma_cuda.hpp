#pragma once

#include "ops/attention/tensor_cores/variants.hpp"

#if defined(KATT_HAS_CUDA)

#include "ops/attention/tensor_cores/kernels/mma_kernel.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"
#include "tile/cuda/cuda_launch.hpp"
#include "tile/cuda/mma_sync.hpp"

namespace katt::attention::impl {

template <class T>
Status mma_supports(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile) {
  if (!tile::has_mma_sync)
    return Status::skipped("needs a build for sm_80 or later (KATT_CUDA_ARCH)");
  if (Status status = tensor_core_supports(args); !status.is_ok()) return status;
  Status status =
      Status::skipped("tile " + names({tile}) + " is not built; built: " + names(MmaTiles::all()));
  visit_tensor_core_tile<MmaTiles, mma_head_dims>(
      args.head_dim(), tile, [&]<int HeadDim, class Shape>() {
        using Kernel = FlashMma<T, HeadDim, Shape::q, Shape::kv>;
        status = tile::cuda_supports<Kernel>(exec, 8, Kernel(args).blocks);
      });
  return status;
}

template <class T, class Rule>
void run_mma(const Kokkos::Cuda& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
             Workspace /*workspace*/) {
  visit_tensor_core_tile<MmaTiles, mma_head_dims>(
      args.head_dim(), tile, [&]<int HeadDim, class Shape>() {
        const FlashMma<T, HeadDim, Shape::q, Shape::kv, Rule> kernel(args, rule);
        tile::cuda_launch<tile::MmaBlock>(exec, "katt::attention::flash_mma", kernel.blocks,
                                          kernel);
      });
}

}  // namespace katt::attention::impl

/// Defines the flash_mma variant of an element type.
#define KATT_INSTANTIATE_MMA(T)                                                                 \
  template katt::Status katt::attention::impl::mma_supports<T>(                                 \
      const Kokkos::Cuda&, const katt::attention::ForwardArgs&, katt::attention::Tile);         \
  template void katt::attention::impl::run_mma<T>(                                              \
      const Kokkos::Cuda&, const katt::attention::ForwardArgs&, const katt::attention::NoRule&, \
      katt::attention::Tile, katt::Workspace);

#endif
