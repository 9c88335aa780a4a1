#include "ops/attention/backward.hpp"

#include "core/execution.hpp"
#include "ops/attention/bf16_panels/backward.hpp"
#include "ops/attention/bf16_panels/variants.hpp"
#include "ops/attention/check.hpp"
#include "ops/attention/naive/backward.hpp"
#include "ops/attention/portable/backward.hpp"
#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/portable/presets.hpp"
#include "ops/attention/tensor_cores/variants.hpp"
#include "ops/attention/tiles.hpp"

namespace katt::attention {

namespace {

template <class Exec>
Variant<Exec, BackwardArgs> naive_variant() {
  return {
      .name = "naive",
      .description = "five GEMMs over stored P and dS",
      .workspace_bytes =
          [](const Exec& exec, const BackwardArgs& args) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::naive_backward_workspace_bytes<Exec, T>(exec, args);
            });
          },
      .run =
          [](const Exec& exec, const BackwardArgs& args, Workspace workspace) {
            visit_dtype(args.q.dtype,
                        [&]<class T>() { impl::naive_backward<Exec, T>(exec, args, workspace); });
          },
      .engine = impl::naive_backward_engine<Exec>,
  };
}

template <class Exec>
Variant<Exec, BackwardArgs> flash_variant() {
  return {
      .name = "flash",
      .description = "scores recomputed from lse tile by tile, nothing stored",
      .rank = 1,
      .parameters = impl::tile_parameters,
      .settings = impl::settings_of(impl::flash_backward_tiles<Exec>()),
      .default_setting =
          [](const BackwardArgs& args) {
            return is_host_v<Exec> ? impl::flash_backward_tiles<Exec>().front()
                                   : impl::portable_backward_tile(args.head_dim());
          },
      .presets = impl::portable_presets<Exec, BackwardArgs>(impl::portable_backward_tile),
      .supports =
          [](const Exec& exec, const BackwardArgs& args, Tile tile) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::flash_backward_supports<Exec, T>(exec, args, tile);
            });
          },
      .workspace_bytes =
          [](const Exec& exec, const BackwardArgs& args, Tile tile) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::flash_backward_workspace_bytes<Exec, T>(exec, args, tile);
            });
          },
      .run =
          [](const Exec& exec, const BackwardArgs& args, Tile tile, Workspace workspace) {
            visit_dtype(args.q.dtype, [&]<class T>() {
              impl::flash_backward<Exec, T>(exec, args, tile, workspace);
            });
          },
  };
}

}  // namespace

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table = [] {
    VariantTable<Exec, BackwardArgs> built_in{naive_variant<Exec>(), flash_variant<Exec>()};
    if constexpr (is_host_v<Exec>) {
      for (const impl::UnitName unit : {impl::UnitName::amx, impl::UnitName::dot}) {
        built_in.add(impl::bf16_variant<Exec, BackwardArgs>(
            unit, impl::bf16_backward_tile_list(), impl::flash_bf16_backward_workspace_bytes<Exec>,
            impl::flash_bf16_backward<Exec>));
      }
    }
#if defined(KATT_HAS_CUDA)
    if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) built_in.add(impl::mma_backward_variant());
#endif
    return built_in;
  }();
  return table;
}

void check(const BackwardArgs& args) {
  impl::check_inputs(args);
  const Dtype dtype = args.q.dtype;
  impl::check_tensor<4>("out", args.out, dtype, args.q.extent);
  impl::check_tensor<4>("dout", args.dout, dtype, args.q.extent);
  impl::check_tensor<3>("lse", args.lse, Dtype::f32, {args.batch(), args.heads(), args.seq_q()});
  impl::check_tensor<4>("dq", args.dq, dtype, args.q.extent);
  impl::check_tensor<4>("dk", args.dk, dtype, args.k.extent);
  impl::check_tensor<4>("dv", args.dv, dtype, args.k.extent);
}

double backward_flops(const BackwardArgs& args) {
  return 10.0 * static_cast<double>(args.head_dim()) * static_cast<double>(args.heads()) *
         impl::visible_pairs(args);
}

double backward_bytes(const BackwardArgs& args) {
  const auto element = static_cast<double>(size_of(args.q.dtype));
  const auto bias = args.mask.bias ? static_cast<double>(args.mask.bias.size()) : 0.0;
  const auto rows = static_cast<double>(args.batch() * args.heads() * args.seq_q());
  return element * (4.0 * static_cast<double>(args.q.size()) +
                    4.0 * static_cast<double>(args.k.size()) + bias) +
         4.0 * rows;
}

KATT_DEFINE_PASS(backward, BackwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(backward, BackwardArgs)

}  // namespace katt::attention
