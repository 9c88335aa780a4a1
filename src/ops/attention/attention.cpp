#include "ops/attention/attention.hpp"

#include <string>

#include "ops/attention/bf16_panels/forward.hpp"
#include "ops/attention/bf16_panels/variants.hpp"
#include "ops/attention/check.hpp"
#include "ops/attention/decode/decode.hpp"
#include "ops/attention/naive/forward.hpp"
#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/portable/forward.hpp"
#include "ops/attention/portable/presets.hpp"
#include "ops/attention/tensor_cores/variants.hpp"
#include "ops/attention/tiles.hpp"

namespace katt::attention {

namespace {

template <class Exec>
Variant<Exec, ForwardArgs> naive_variant() {
  return {
      .name = "naive",
      .description = "GEMM, softmax over stored scores, GEMM",
      .workspace_bytes =
          [](const Exec& exec, const ForwardArgs& args) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::naive_workspace_bytes<Exec, T>(exec, args);
            });
          },
      .run =
          [](const Exec& exec, const ForwardArgs& args, Workspace workspace) {
            visit_dtype(args.q.dtype,
                        [&]<class T>() { impl::naive_forward<Exec, T>(exec, args, workspace); });
          },
      .engine = [](const ForwardArgs& args) -> std::string {
        if (!is_host_v<Exec> || args.q.dtype == Dtype::f32) return "blas";
        return args.q.dtype == Dtype::bf16 && tile::bf16_tiles::usable()
                   ? tile::bf16_tiles::name_of(tile::bf16_tiles::unit())
                   : tile::vector_name;
      },
  };
}

template <class Exec>
Variant<Exec, ForwardArgs> flash_variant() {
  return {
      .name = "flash",
      .description = "one pass over the keys, online softmax, no stored scores",
      .rank = 1,
      .parameters = impl::tile_parameters,
      .settings = impl::settings_of(impl::FlashTiles<Exec>::all()),
      .default_setting =
          [](const ForwardArgs& args) {
            return is_host_v<Exec> ? impl::FlashTiles<Exec>::all().front()
                                   : impl::portable_forward_tile(args.head_dim());
          },
      .presets = impl::portable_presets<Exec, ForwardArgs>(impl::portable_forward_tile),
      .supports =
          [](const Exec& exec, const ForwardArgs& args, Tile tile) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::flash_supports<Exec, T>(exec, args, tile);
            });
          },
      .workspace_bytes =
          [](const Exec& exec, const ForwardArgs& args, Tile tile) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::flash_workspace_bytes<Exec, T>(exec, args, tile);
            });
          },
      .run =
          [](const Exec& exec, const ForwardArgs& args, Tile tile, Workspace workspace) {
            visit_dtype(args.q.dtype, [&]<class T>() {
              impl::flash_forward<Exec, T>(exec, args, tile, workspace);
            });
          },
  };
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table = [] {
    VariantTable<Exec, ForwardArgs> built_in{naive_variant<Exec>(), flash_variant<Exec>()};
    if constexpr (is_host_v<Exec>) {
      for (const impl::UnitName unit : {impl::UnitName::amx, impl::UnitName::dot}) {
        built_in.add(impl::bf16_variant<Exec, ForwardArgs>(unit, impl::bf16_tile_list(),
                                                           impl::flash_bf16_workspace_bytes<Exec>,
                                                           impl::flash_bf16_forward<Exec>));
      }
    }
#if defined(KATT_HAS_CUDA)
    if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) {
      built_in.add(impl::mma_variant());
      built_in.add(impl::wgmma_variant());
    }
#endif
    built_in.add(impl::decode_variant<Exec, ForwardArgs>());
    return built_in;
  }();
  return table;
}

void check(const ForwardArgs& args) {
  impl::check_inputs(args);
  impl::check_output(args);
}

double forward_flops(const ForwardArgs& args) {
  return 4.0 * static_cast<double>(args.head_dim()) * static_cast<double>(args.heads()) *
         impl::visible_pairs(args);
}

double forward_bytes(const ForwardArgs& args) {
  const auto element = static_cast<double>(size_of(args.q.dtype));
  const auto bias = args.mask.bias ? static_cast<double>(args.mask.bias.size()) : 0.0;
  const auto lse = args.lse ? static_cast<double>(args.lse.size()) : 0.0;
  return element * (2.0 * static_cast<double>(args.q.size()) +
                    2.0 * static_cast<double>(args.k.size()) + bias) +
         4.0 * lse;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(forward, ForwardArgs)

}  // namespace katt::attention
