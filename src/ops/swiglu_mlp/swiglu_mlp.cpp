#include "ops/swiglu_mlp/swiglu_mlp.hpp"

#include <string>
#include <type_traits>

#include "core/check.hpp"
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
           if (forward) return {384, 16384};
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

/// tokens · hidden · intermediate
template <class Args>
double volume(const Args& args) {
  return static_cast<double>(args.tokens()) * static_cast<double>(args.hidden()) *
         static_cast<double>(args.intermediate());
}

/// The inputs that both passes have.
template <class Args>
void check_inputs(const Args& args) {
  const Dtype dtype = args.x.dtype;
  const std::int64_t h = args.hidden();
  const std::int64_t f = args.intermediate();
  if (args.tokens() == 0 || h == 0 || f == 0) {
    throw InputError("swiglu_mlp: x: holds shape " + shape_text(args.x.extent) + " and w_gate " +
                     shape_text(args.w_gate.extent) + ", expected no extent of 0");
  }
  check_tensor<2>("swiglu_mlp", "w_gate", args.w_gate, dtype, {f, h});
  check_tensor<2>("swiglu_mlp", "w_up", args.w_up, dtype, {f, h});
  check_tensor<2>("swiglu_mlp", "w_down", args.w_down, dtype, {h, f});
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table = built_in<Exec, ForwardArgs>();
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table = built_in<Exec, BackwardArgs>();
  return table;
}

void check(const ForwardArgs& args) {
  check_inputs(args);
  check_tensor<2>("swiglu_mlp", "out", args.out, args.x.dtype, args.x.extent);
}

void check(const BackwardArgs& args) {
  check_inputs(args);
  const Dtype dtype = args.x.dtype;
  check_tensor<2>("swiglu_mlp", "dout", args.dout, dtype, args.x.extent);
  check_tensor<2>("swiglu_mlp", "dx", args.dx, dtype, args.x.extent);
  check_tensor<2>("swiglu_mlp", "dw_gate", args.dw_gate, dtype, args.w_gate.extent);
  check_tensor<2>("swiglu_mlp", "dw_up", args.dw_up, dtype, args.w_up.extent);
  check_tensor<2>("swiglu_mlp", "dw_down", args.dw_down, dtype, args.w_down.extent);
}

double forward_flops(const ForwardArgs& args) { return 2.0 * 3.0 * volume(args); }
double backward_flops(const BackwardArgs& args) { return 2.0 * 8.0 * volume(args); }

double forward_bytes(const ForwardArgs& args) {
  return static_cast<double>(size_of(args.x.dtype)) *
         (2.0 * static_cast<double>(args.x.size()) + 3.0 * static_cast<double>(args.w_gate.size()));
}

double backward_bytes(const BackwardArgs& args) {
  return static_cast<double>(size_of(args.x.dtype)) *
         (3.0 * static_cast<double>(args.x.size()) + 6.0 * static_cast<double>(args.w_gate.size()));
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::swiglu_mlp
