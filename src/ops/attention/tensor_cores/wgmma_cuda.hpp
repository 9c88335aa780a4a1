#pragma once

#include "ops/attention/tensor_cores/variants.hpp"

#if defined(KATT_HAS_CUDA)

#include "ops/attention/tensor_cores/kernels/wgmma_kernel.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"
#include "tile/cuda/cuda_launch.hpp"
#include "tile/cuda/wgmma.hpp"

namespace katt::attention::impl {

/// Calls f.operator()<Kernel>() for the kernel of a tile, and returns ok; or skipped, with the
/// reason.
template <class T, class Rule, class F>
Status visit_wgmma(const ForwardArgs& args, Tile tile, F&& f) {
  Status status = Status::skipped("tile " + names({tile}) +
                                  " is not built; built: " + names(WgmmaTiles::all()));
  visit_tensor_core_tile<WgmmaTiles, wgmma_head_dims>(
      args.head_dim(), tile, [&]<int HeadDim, class Shape>() {
        if constexpr (wgmma_is_built(HeadDim, Shape::tile)) {
          status = f.template operator()<FlashWgmma<T, HeadDim, Shape::q, Shape::kv, Rule>>();
        } else {
          status = Status::skipped("tile " + names({tile}) + " is not built for head_dim " +
                                   std::to_string(args.head_dim()));
        }
      });
  return status;
}

/// ok, or skipped when the device is another than wgmma runs on.
inline Status wgmma_runs_on(const Kokkos::Cuda& exec) {
  const cudaDeviceProp& device = exec.cuda_device_prop();
  if (device.major == 9) return Status::ok();
  return Status::skipped("runs on compute capability 9.0 alone, the device has " +
                         std::to_string(device.major) + "." + std::to_string(device.minor));
}

template <class T>
Status wgmma_supports(const Kokkos::Cuda& exec, const ForwardArgs& args, Tile tile) {
#if defined(KATT_CUDA_SM90A)
  if (Status status = tensor_core_supports(args); !status.is_ok()) return status;
  if (Status status = wgmma_runs_on(exec); !status.is_ok()) return status;
  return visit_wgmma<T, NoRule>(args, tile, [&]<class Kernel>() {
    return tile::cuda_supports<Kernel>(exec, 9, Kernel(args).blocks);
  });
#else
  (void)exec, (void)args, (void)tile;
  return Status::skipped("needs a build for sm_90a (KATT_CUDA_ARCH)");
#endif
}

template <class T, class Rule>
void run_wgmma(const Kokkos::Cuda& exec, const ForwardArgs& args, const Rule& rule, Tile tile,
               Workspace /*workspace*/) {
#if defined(KATT_CUDA_SM90A)
  (void)visit_wgmma<T, Rule>(args, tile, [&]<class Kernel>() {
    Kernel kernel(args, rule, exec.cuda_device_prop().multiProcessorCount);
    kernel.for_each_map([](tile::TensorMap& map) { tile::encode(map); });
    tile::cuda_launch<tile::WgmmaBlock>(exec, "katt::attention::flash_wgmma", kernel.blocks,
                                        kernel);
    return Status::ok();
  });
#else
  (void)exec, (void)args, (void)rule, (void)tile;
#endif
}

}  // namespace katt::attention::impl

/// Defines the flash_wgmma variant of an element type.
#define KATT_INSTANTIATE_WGMMA(T)                                                               \
  template katt::Status katt::attention::impl::wgmma_supports<T>(                               \
      const Kokkos::Cuda&, const katt::attention::ForwardArgs&, katt::attention::Tile);         \
  template void katt::attention::impl::run_wgmma<T>(                                            \
      const Kokkos::Cuda&, const katt::attention::ForwardArgs&, const katt::attention::NoRule&, \
      katt::attention::Tile, katt::Workspace);

#endif
