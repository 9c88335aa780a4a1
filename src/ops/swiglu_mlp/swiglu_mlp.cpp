#include "ops/swiglu_mlp/swiglu_mlp.hpp"

#include <string>
#include <type_traits>

#include "core/execution.hpp"
#include "ops/swiglu_mlp/swiglu_mlp_fused.hpp"
#include "ops/swiglu_mlp/swiglu_mlp_naive.hpp"

namespace katt::swiglu_mlp {

namespace {

template <class Exec, class Args>
VariantTable<Exec, Args> built_in() {
  static constexpr bool forward = std::is_same_v<Args, ForwardArgs>;
  return VariantTable<Exec, Args>{
      {.name = "naive",
       .description = "gate and up stored for all tokens, one launch an operation",
       .workspace_bytes = [](const Exec& exec,
                             const Args& args) { return impl::naive_workspace_bytes(exec, args); },
       .run =
           [](const Exec& exec, const Args& args, Workspace workspace) {
             if constexpr (forward) impl::naive_forward(exec, args, workspace);
             else impl::naive_backward(exec, args, workspace);
           }},
      {.name = "fused",
       .description =
           "a gated product, or gate and up for one block of tokens and columns at a time",
       .rank = 1,
       .parameters = {"tile_q", "tile_kv"},
       .settings = impl::fused_tiles(),
       .default_setting = [](const Args& args) -> Setting {
         if (is_host_v<Exec>) {
           if (forward) return {1024, 16384};
           // Blocks of few tokens are small though they have all columns.
           return args.tokens() <= 1024 ? Setting{4096, 16384} : Setting{4096, 4096};
         }
         // In 16 bits the outputs of a tile's tokens have sums in f32, twice the size of the
         // outputs.
         if (forward && args.x.dtype != Dtype::f32) return {512, 1024};
         return {1024, 1024};
       },
       .workspace_bytes =
           [](const Exec& exec, const Args& args, impl::Tile tile) {
             return impl::fused_workspace_bytes(exec, args, tile);
           },
       .run =
           [](const Exec& exec, const Args& args, impl::Tile tile, Workspace workspace) {
             if constexpr (forward) impl::fused_forward(exec, args, tile, workspace);
             else impl::fused_backward(exec, args, tile, workspace);
           }}};
}

}  // namespace

KATT_DEFINE_VARIANTS(forward, ForwardArgs, built_in<Exec, ForwardArgs>())
KATT_DEFINE_VARIANTS(backward, BackwardArgs, built_in<Exec, BackwardArgs>())
KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::swiglu_mlp
