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

template <class T>
Status wgmma_backward_supports(const Kokkos::Cuda& exec, const BackwardArgs& args, Tile tile) {
#if defined(KATT_CUDA_SM90A)
  if (Status status = tensor_core_supports(args); !status.is_ok()) return status;
  if (Status status = wgmma_runs_on(exec); !status.is_ok()) return status;
  Status status = Status::ok();
  const bool built =
      visit_wgmma_backward<T, NoRule>(args.head_dim(), tile, [&]<class... Kernels>() {
        ((status = status.is_ok()
                       ? tile::cuda_supports<Kernels>(exec, 9, Kernels(args, nullptr).blocks)
                       : status),
         ...);
      });
  return built ? status
               : Status::skipped("tile " + names({tile}) +
                                 " is not built; built: " + names(WgmmaBackwardTiles::all()));
#else
  (void)exec, (void)args, (void)tile;
  return Status::skipped("needs a build for sm_90a (KATT_CUDA_ARCH)");
#endif
}

template <class T, class Rule>
void run_wgmma_backward(const Kokkos::Cuda& exec, const BackwardArgs& args, const Rule& rule,
                        Tile tile, Workspace workspace) {
#if defined(KATT_CUDA_SM90A)
  visit_wgmma_backward<T, Rule>(
      args.head_dim(), tile, [&]<class Statistics, class Queries, class... Keys>() {
        const auto launch = [&]<class Block, class Kernel>(const char* name) {
          const Kernel kernel(args, workspace.data, rule);
          tile::cuda_launch<Block>(exec, name, kernel.blocks, kernel);
        };
        launch.template operator()<tile::MmaBlock, Statistics>(
            "katt::attention::flash_wgmma_backward_rows");
        launch.template operator()<tile::WgmmaBlock, Queries>(
            "katt::attention::flash_wgmma_backward_dq");
        (launch.template operator()<tile::WgmmaBlock, Keys>(Keys::name), ...);
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
