#include "ops/attention/backward.hpp"

#include "core/execution.hpp"
#include "ops/attention/bf16_panels/backward.hpp"
#include "ops/attention/check.hpp"
#include "ops/attention/naive/backward.hpp"
#include "ops/attention/portable/backward.hpp"
#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/tensor_cores/variants.hpp"
#include "ops/attention/tiles.hpp"

namespace katt::attention {

namespace {

using impl::on_bf16_panels;
using impl::with_bf16_panels;

template <class Exec>
Variant<Exec, BackwardArgs> naive_variant() {
  return {
      .name = "naive",
      .description = "five GEMMs over stored P and dS",
      .tiles = {},
      .supports = [](const Exec&, const BackwardArgs&, Tile) { return Status::ok(); },
      .workspace_bytes =
          [](const Exec& exec, const BackwardArgs& args, Tile) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::naive_backward_workspace_bytes<Exec, T>(exec, args);
            });
          },
      .run =
          [](const Exec& exec, const BackwardArgs& args, Tile, Workspace workspace) {
            visit_dtype(args.q.dtype,
                        [&]<class T>() { impl::naive_backward<Exec, T>(exec, args, workspace); });
          },
      .engine = [](const Exec& exec, const BackwardArgs& args,
                   Tile) { return impl::naive_backward_engine(exec, args); },
  };
}

template <class Exec>
Variant<Exec, BackwardArgs> flash_variant() {
  return {
      .name = "flash",
      .description = "scores recomputed from lse tile by tile, nothing stored",
      .tiles = with_bf16_panels<Exec>(impl::flash_backward_tiles<Exec>(),
                                      impl::bf16_backward_tile_list()),
      .supports =
          [](const Exec& exec, const BackwardArgs& args, Tile tile) {
            if (on_bf16_panels<Exec>(args.q.dtype)) return impl::flash_bf16_backward_supports(tile);
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::flash_backward_supports<Exec, T>(exec, args, tile);
            });
          },
      .workspace_bytes =
          [](const Exec& exec, const BackwardArgs& args, Tile tile) {
            if (on_bf16_panels<Exec>(args.q.dtype)) {
              return impl::flash_bf16_backward_workspace_bytes(exec, args, tile);
            }
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return impl::flash_backward_workspace_bytes<Exec, T>(exec, args, tile);
            });
          },
      .run =
          [](const Exec& exec, const BackwardArgs& args, Tile tile, Workspace workspace) {
            if (on_bf16_panels<Exec>(args.q.dtype)) {
              return impl::flash_bf16_backward(exec, args, tile, workspace);
            }
            visit_dtype(args.q.dtype, [&]<class T>() {
              impl::flash_backward<Exec, T>(exec, args, tile, workspace);
            });
          },
      .engine = [](const Exec&, const BackwardArgs& args, Tile) -> std::string {
        return on_bf16_panels<Exec>(args.q.dtype) ? tile::bf16_panels::unit_name() : "";
      },
      .default_tile =
          [](const BackwardArgs& args) {
            if (!is_host_v<Exec>) return impl::portable_backward_tile(args.head_dim());
            return on_bf16_panels<Exec>(args.q.dtype) ? impl::bf16_backward_tile_list().front()
                                                      : impl::flash_backward_tiles<Exec>().front();
          },
  };
}

}  // namespace

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table = [] {
    VariantTable<Exec, BackwardArgs> built_in{naive_variant<Exec>(), flash_variant<Exec>()};
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

template <class Exec>
std::size_t workspace_bytes(const Exec& exec, const BackwardArgs& args, const Config& config) {
  check(args);
  return backward_variants<Exec>().workspace_bytes(exec, args, config);
}

template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace) {
  check(args);
  return backward_variants<Exec>().run(exec, args, config, workspace);
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

#define KATT_INSTANTIATE_ATTENTION_BACKWARD(Exec)                                              \
  template VariantTable<Exec, BackwardArgs>& backward_variants<Exec>();                        \
  template std::size_t workspace_bytes<Exec>(const Exec&, const BackwardArgs&, const Config&); \
  template Status backward<Exec>(const Exec&, const BackwardArgs&, const Config&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_ATTENTION_BACKWARD)

}  // namespace katt::attention
