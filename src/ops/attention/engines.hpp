#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "core/dtype.hpp"
#include "core/execution.hpp"
#include "op/variants.hpp"
#include "ops/attention/bf16_panels/panels.hpp"
#include "ops/attention/bf16_panels/variants.hpp"
#include "ops/attention/decode/decode.hpp"
#include "ops/attention/naive/naive.hpp"
#include "ops/attention/portable/device_tiles.hpp"
#include "ops/attention/portable/mask_gradient.hpp"
#include "ops/attention/portable/portable.hpp"
#include "ops/attention/portable/presets.hpp"
#include "ops/attention/tensor_cores/variants.hpp"

/// The tables of variants of both passes, for a score rule. The functions of an engine have the same
/// names in both passes.
namespace katt::attention::impl {

/// Above flash in f32 on a device, forward: cuBLAS' products have four times the rate of the portable
/// ones of flash (H100), which the stored scores do not eat up. Not where windows or blocks hide
/// most scores, which naive computes, nor where the scores take more than a GiB; before a backward
/// pass for the reason of decode_rank().
template <class Exec, class Args>
int naive_rank(const Args& args) {
  if constexpr (!is_host_v<Exec> && std::is_same_v<Args, ForwardArgs>) {
    constexpr std::int64_t most_bytes = std::int64_t{1} << 30;
    const std::int64_t rows = args.batch() * args.heads() * args.seq_q();
    const std::int64_t bytes = rows * args.seq_kv() * static_cast<std::int64_t>(sizeof(float));
    const bool sees_all = args.mask.window_left < 0 && args.mask.block_mask == nullptr;
    return args.q.dtype == Dtype::f32 && sees_all && bytes <= most_bytes && !args.for_backward ? 2
                                                                                               : 0;
  }
  (void)args;
  return 0;
}

template <class Exec, class Args, class Rule>
Variant<Exec, Args> naive_variant(const std::string& description, const Rule& rule) {
  return {
      .name = "naive",
      .description = description,
      .rank = naive_rank<Exec, Args>,
      .workspace_bytes =
          [](const Exec& exec, const Args& args) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return naive_workspace_bytes<Exec, T>(exec, args);
            });
          },
      .run =
          [rule](const Exec& exec, const Args& args, Workspace workspace) {
            visit_dtype(args.q.dtype,
                        [&]<class T>() { run_naive<Exec, T>(exec, args, rule, workspace); });
          },
      .engine = [](const Exec& exec, const Args& args) { return naive_engine(exec, args); },
  };
}

template <class Exec, class Args, class Rule>
Variant<Exec, Args> flash_variant(const std::string& description, const Rule& rule) {
  constexpr auto device_tile = [](std::int64_t head_dim, std::size_t shared_bytes) {
    return portable_device_tile<Args>(head_dim, shared_bytes);
  };
  return {
      .name = "flash",
      .description = description,
      .rank = 1,
      .parameters = tile_parameters,
      .settings = settings_of(portable_tiles<Exec, Args>()),
      .default_setting =
          [](const Args& args) {
            return is_host_v<Exec> ? portable_host_tile(args)
                                   : portable_device_tile<Args>(args.head_dim());
          },
      .presets = portable_presets<Exec, Args>(device_tile),
      .supports =
          [](const Exec& exec, const Args& args, Tile tile) {
            return visit_dtype(
                args.q.dtype, [&]<class T>() { return flash_supports<Exec, T>(exec, args, tile); });
          },
      .workspace_bytes =
          [](const Exec& exec, const Args& args, Tile tile) {
            return visit_dtype(args.q.dtype, [&]<class T>() {
              return flash_workspace_bytes<Exec, T>(exec, args, tile);
            });
          },
      .run =
          [rule](const Exec& exec, const Args& args, Tile tile, Workspace workspace) {
            visit_dtype(args.q.dtype,
                        [&]<class T>() { run_flash<Exec, T>(exec, args, rule, tile, workspace); });
          },
  };
}

template <class Exec, class Rule>
VariantTable<Exec, ForwardArgs> forward_engines(const Rule& rule) {
  using Args = ForwardArgs;
  VariantTable<Exec, Args> table{
      naive_variant<Exec, Args>("GEMM, softmax over stored scores, GEMM", rule),
      flash_variant<Exec, Args>("one pass over the keys, online softmax, no stored scores", rule)};
  add_panel_variants<Exec, Args>(table, rule);
#if defined(KATT_HAS_CUDA)
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) {
    table.add(mma_variant(rule));
    table.add(wgmma_variant(rule));
  }
#endif
  table.add(decode_variant<Exec, Args>(rule));
  return table;
}

template <class Exec, class Rule>
VariantTable<Exec, BackwardArgs> backward_engines(const Rule& rule) {
  using Args = BackwardArgs;
  VariantTable<Exec, Args> table{
      naive_variant<Exec, Args>("five GEMMs over stored P and dS", rule),
      flash_variant<Exec, Args>("scores recomputed from lse tile by tile, nothing stored", rule)};
  add_panel_variants<Exec, Args>(table, rule);
#if defined(KATT_HAS_CUDA)
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) {
    table.add(mma_backward_variant(rule));
    table.add(wgmma_backward_variant(rule));
  }
#endif
  return with_mask_gradient(table, rule);
}

}  // namespace katt::attention::impl
