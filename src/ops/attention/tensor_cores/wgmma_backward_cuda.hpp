#pragma once

#include "ops/attention/tensor_cores/variants.hpp"

#if defined(KATT_HAS_CUDA)

#include "ops/attention/tensor_cores/kernels/backward_statistics.hpp"
#include "ops/attention/tensor_cores/kernels/wgmma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"
#include "ops/attention/tensor_cores/wgmma_cuda.hpp"
#include "tile/cuda/cuda_launch.hpp"
#include "tile/cuda/wgmma.hpp"

namespace katt::attention::impl {

/// Calls f.operator()<Statistics, Queries, Keys>() for the kernels of a tile, and returns its status;
/// or skipped, with the reason.
template <class T, class Rule, class F>
Status visit_wgmma_backward(const BackwardArgs& args, Tile tile, F&& f) {
  if (Status status = tensor_core_backward_takes(args.head_dim()); !status.is_ok()) return status;
  Status status = Status::skipped("tile " + names({tile}) +
                                  " is not built; built: " + names(WgmmaBackwardTiles::all()));
  visit_head_dim<backward_head_dims>(args.head_dim(), [&]<int HeadDim>() {
    WgmmaBackwardTiles::visit(tile, [&]<class Shape>() {
      status =
          f.template operator()<BackwardStatistics<T, HeadDim, Rule>,
                                FlashWgmmaBackwardQ<T, HeadDim, wgmma_backward_q_tile(HeadDim).q,
                                                    wgmma_backward_q_tile(HeadDim).kv, Rule>,
                                FlashWgmmaBackwardKv<T, HeadDim, Shape::q, Shape::kv, Rule>>();
    });
  });
  return status;
}

template <class T>
Status wgmma_backward_supports(const Kokkos::Cuda& exec, const BackwardArgs& args, Tile tile) {
#if defined(KATT_CUDA_SM90A)
  if (Status status = tensor_core_supports(args); !status.is_ok()) return status;
  if (Status status = wgmma_runs_on(exec); !status.is_ok()) return status;
  return visit_wgmma_backward<T, NoRule>(
      args, tile, [&]<class Statistics, class Queries, class Keys>() {
        Status status = tile::cuda_supports<Statistics>(exec, 9, Statistics(args, nullptr).blocks);
        if (status.is_ok()) {
          status = tile::cuda_supports<Queries>(exec, 9, Queries(args, nullptr).blocks);
        }
        return status.is_ok() ? tile::cuda_supports<Keys>(exec, 9, Keys(args, nullptr).blocks)
                              : status;
      });
#else
  (void)exec, (void)args, (void)tile;
  return Status::skipped("needs a build for sm_90a (KATT_CUDA_ARCH)");
#endif
}

template <class T, class Rule>
void run_wgmma_backward(const Kokkos::Cuda& exec, const BackwardArgs& args, const Rule& rule,
                        Tile tile, Workspace workspace) {
#if defined(KATT_CUDA_SM90A)
  (void)visit_wgmma_backward<T, Rule>(
      args, tile, [&]<class Statistics, class Queries, class Keys>() {
        const Statistics statistics(args, workspace.data, rule);
        const Queries queries(args, workspace.data, rule);
        const Keys keys(args, workspace.data, rule);
        tile::cuda_launch<tile::MmaBlock>(exec, "katt::attention::flash_wgmma_backward_rows",
                                          statistics.blocks, statistics);
        tile::cuda_launch<tile::WgmmaBlock>(exec, "katt::attention::flash_wgmma_backward_dq",
                                            queries.blocks, queries);
        tile::cuda_launch<tile::WgmmaBlock>(exec, "katt::attention::flash_wgmma_backward_dkv",
                                            keys.blocks, keys);
        return Status::ok();
      });
#else
  (void)exec, (void)args, (void)rule, (void)tile, (void)workspace;
#endif
}

}  // namespace katt::attention::impl

/// Defines the backward pass of flash_wgmma for an element type.
#define KATT_INSTANTIATE_WGMMA_BACKWARD(T)                                                       \
  template katt::Status katt::attention::impl::wgmma_backward_supports<T>(                       \
      const Kokkos::Cuda&, const katt::attention::BackwardArgs&, katt::attention::Tile);         \
  template void katt::attention::impl::run_wgmma_backward<T>(                                    \
      const Kokkos::Cuda&, const katt::attention::BackwardArgs&, const katt::attention::NoRule&, \
      katt::attention::Tile, katt::Workspace);

#endif
