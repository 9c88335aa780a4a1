#include "ops/attention/attention.hpp"

#include <string>

#include "core/error.hpp"
#include "ops/attention/bf16_panels/forward.hpp"
#include "ops/attention/check.hpp"
#include "ops/attention/decode/decode.hpp"
#include "ops/attention/naive/forward.hpp"
#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/portable/forward.hpp"
#include "ops/attention/tensor_cores/variants.hpp"
#include "ops/attention/tiles.hpp"

namespace katt::attention {

namespace {

using impl::on_bf16_panels;
using impl::with_bf16_panels;

template <class Exec>
Variant<Exec, ForwardArgs> naive_variant() {
  return {
      .name = "naive",
      .description = "GEMM, softmax over stored scores, GEMM",
      .tiles = {},
      .supports = [](const Exec&, const ForwardArgs&, Tile) { return Status::ok(); },
      .workspace_bytes =
          [](const Exec& exec, const ForwardArgs& args, Tile) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::naive_workspace_bytes<Exec, T>(exec, args);
            });
          },
      .run =
          [](const Exec& exec, const ForwardArgs& args, Tile, Workspace workspace) {
            visit_dtype(args.q.dtype,
                        [&]<class T>() { impl::naive_forward<Exec, T>(exec, args, workspace); });
          },
      .engine = [](const Exec&, const ForwardArgs& args, Tile) -> std::string {
        if (!is_host_v<Exec> || args.q.dtype == Dtype::f32) return "blas";
        return on_bf16_panels<Exec>(args.q.dtype) ? tile::bf16_panels::unit_name()
                                                  : tile::vector_name;
      },
  };
}

template <class Exec>
Variant<Exec, ForwardArgs> flash_variant() {
  return {
      .name = "flash",
      .description = "one pass over the keys, online softmax, no stored scores",
      .tiles = with_bf16_panels<Exec>(impl::FlashTiles<Exec>::all(), impl::bf16_tile_list()),
      .supports =
          [](const Exec& exec, const ForwardArgs& args, Tile tile) {
            if (on_bf16_panels<Exec>(args.q.dtype)) return impl::flash_bf16_supports(args, tile);
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::flash_supports<Exec, T>(exec, args, tile);
            });
          },
      .workspace_bytes =
          [](const Exec& exec, const ForwardArgs& args, Tile tile) {
            if (on_bf16_panels<Exec>(args.q.dtype))
              return impl::flash_bf16_workspace_bytes(exec, args, tile);
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::flash_workspace_bytes<Exec, T>(exec, args, tile);
            });
          },
      .run =
          [](const Exec& exec, const ForwardArgs& args, Tile tile, Workspace workspace) {
            if (on_bf16_panels<Exec>(args.q.dtype))
              return impl::flash_bf16_forward(exec, args, tile, workspace);
            visit_dtype(args.q.dtype, [&]<class T>() {
              impl::flash_forward<Exec, T>(exec, args, tile, workspace);
            });
          },
      .engine = [](const Exec&, const ForwardArgs& args, Tile) -> std::string {
        return on_bf16_panels<Exec>(args.q.dtype) ? tile::bf16_panels::unit_name() : "";
      },
      .default_tile =
          [](const ForwardArgs& args) {
            if (!is_host_v<Exec>) return impl::portable_forward_tile(args.head_dim());
            return on_bf16_panels<Exec>(args.q.dtype) ? impl::bf16_tile_list().front()
                                                      : impl::FlashTiles<Exec>::all().front();
          },
  };
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table = [] {
    VariantTable<Exec, ForwardArgs> built_in{naive_variant<Exec>(), flash_variant<Exec>()};
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

template <class Exec>
std::size_t workspace_bytes(const Exec& exec, const ForwardArgs& args, const Config& config) {
  check(args);
  return forward_variants<Exec>().workspace_bytes(exec, args, config);
}

template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace) {
  check(args);
  return forward_variants<Exec>().run(exec, args, config, workspace);
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

#define KATT_INSTANTIATE_ATTENTION(Exec)                                                      \
  template VariantTable<Exec, ForwardArgs>& forward_variants<Exec>();                         \
  template std::size_t workspace_bytes<Exec>(const Exec&, const ForwardArgs&, const Config&); \
  template Status forward<Exec>(const Exec&, const ForwardArgs&, const Config&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_ATTENTION)

}  // namespace katt::attention
