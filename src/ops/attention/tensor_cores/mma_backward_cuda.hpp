#pragma once

#include "ops/attention/tensor_cores/variants.hpp"

#if defined(KATT_HAS_CUDA)

#include "ops/attention/tensor_cores/kernels/mma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"
#include "tile/cuda/cuda_launch.hpp"
#include "tile/cuda/mma_sync.hpp"

namespace katt::attention::impl {

template <class T>
Status mma_backward_supports(const Kokkos::Cuda& exec, const BackwardArgs& args, Tile tile) {
  if (!tile::has_mma_sync)
    return Status::skipped("needs a build for sm_80 or later (KATT_CUDA_ARCH)");
  if (Status status = tensor_core_supports(args); !status.is_ok()) return status;
  if (Status status = tensor_core_backward_takes(args.head_dim()); !status.is_ok()) return status;
  Status status =
      Status::skipped("tile " + names({tile}) + " at head_dim " + std::to_string(args.head_dim()) +
                      " is not built; built: " + names(backward_tiles(args.head_dim())));
  visit_backward_tile(args.head_dim(), tile, [&]<int HeadDim, class Shape>() {
    using Queries = FlashMmaBackwardQ<T, HeadDim, backward_block_rows, Shape::kv>;
    using Keys = FlashMmaBackwardKv<T, HeadDim, Shape::q, Shape::kv>;
    status = tile::cuda_supports<Queries>(exec, 8, Queries(args, nullptr).blocks);
    if (status.is_ok()) status = tile::cuda_supports<Keys>(exec, 8, Keys(args, nullptr).blocks);
  });
  return status;
}

template <class T, class Rule>
void run_mma_backward(const Kokkos::Cuda& exec, const BackwardArgs& args, const Rule& rule,
                      Tile tile, Workspace workspace) {
  visit_backward_tile(args.head_dim(), tile, [&]<int HeadDim, class Shape>() {
    const FlashMmaBackwardQ<T, HeadDim, backward_block_rows, Shape::kv, Rule> queries(
        args, workspace.data, rule);
    const FlashMmaBackwardKv<T, HeadDim, Shape::q, Shape::kv, Rule> keys(args, workspace.data,
                                                                         rule);
    tile::cuda_launch<tile::MmaBlock>(exec, "katt::attention::flash_mma_backward_dq",
                                      queries.blocks, queries);
    tile::cuda_launch<tile::MmaBlock>(exec, "katt::attention::flash_mma_backward_dkv", keys.blocks,
                                      keys);
  });
}

}  // namespace katt::attention::impl

/// Defines the backward pass of flash_mma for an element type.
#define KATT_INSTANTIATE_MMA_BACKWARD(T)                                                         \
  template katt::Status katt::attention::impl::mma_backward_supports<T>(                         \
      const Kokkos::Cuda&, const katt::attention::BackwardArgs&, katt::attention::Tile);         \
  template void katt::attention::impl::run_mma_backward<T>(                                      \
      const Kokkos::Cuda&, const katt::attention::BackwardArgs&, const katt::attention::NoRule&, \
      katt::attention::Tile, katt::Workspace);

#endif
