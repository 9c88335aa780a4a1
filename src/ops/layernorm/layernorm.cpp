#include "ops/layernorm/layernorm.hpp"

#include <cmath>
#include <string>

#include "core/parts.hpp"
#include "ops/layernorm/layernorm_kernels.hpp"
#include "tile/rows/column_sums.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::layernorm {

namespace {

using impl::Statistics;
using impl::Step;

const TensorRef<2>& result_of(const ForwardArgs& args) { return args.out; }
const TensorRef<2>& result_of(const BackwardArgs& args) { return args.dx; }

/// One launch of a pass, with streaming stores where they pay.
template <bool backward, Step step, class Exec, class Args>
void launch(const Exec& exec, const char* label, const Args& args, std::int64_t block_rows,
            void* stored, void* partial = nullptr) {
  using Memory = typename Exec::memory_space;
  const TensorRef<2>& out = result_of(args);
  visit_dtype(out.dtype, [&]<class T>() {
    const auto run = [&]<bool stream>() {
      impl::Pass<Exec, T, backward, step, stream> pass;
      pass.x = args.x.template view<T, Memory>();
      if constexpr (backward) pass.dout = args.dout.template view<T, Memory>();
      pass.weight = static_cast<const T*>(args.weight.data);
      if constexpr (!backward) pass.bias = static_cast<const T*>(args.bias.data);
      pass.out = out.view<T, Memory>();
      pass.eps = args.eps;
      pass.block_rows = block_rows;
      pass.stored = static_cast<Statistics*>(stored);
      pass.partial = static_cast<float*>(partial);
      bool wide = tile::are_chunks(args.x, args.weight, out);
      if constexpr (backward) {
        wide = wide && tile::are_chunks(args.dout);
      } else {
        wide = wide && tile::are_chunks(args.bias);
      }
      tile::for_each_wide_row(exec, label, (out.extent[0] + block_rows - 1) / block_rows, pass,
                              wide);
    };
    constexpr bool can_stream = tile::can_stream_v<Exec> && step != Step::statistics;
    const bool stream = tile::should_stream<Exec>(static_cast<const T*>(out.data), out.extent[0],
                                                  out.extent[1], out.stride[0]);
    can_stream&& stream ? run.template operator()<can_stream>() : run.template operator()<false>();
  });
}

std::size_t statistics_bytes(const auto& args) {
  return aligned_bytes<Statistics>(args.x.extent[0]);
}
template <class Exec>
std::size_t partial_bytes(const Exec& exec, const BackwardArgs& args) {
  return aligned_bytes<float>(tile::RowBlocks::of(exec, args.x.extent[0]).blocks * 2 *
                              args.x.extent[1]);
}

template <class Exec>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  launch<false, Step::statistics>(exec, "katt::layernorm::statistics", args, 1, workspace.data);
  launch<false, Step::results>(exec, "katt::layernorm::normalise", args, 1, workspace.data);
}

template <class Exec>
void fused_forward(const Exec& exec, const ForwardArgs& args) {
  launch<false, Step::all>(exec, "katt::layernorm::forward", args, 1, nullptr);
}

/// dweight and dbias from the partial sums of the blocks.
template <class Exec>
void sum_blocks(const Exec& exec, const BackwardArgs& args, const void* partial) {
  const std::int64_t columns = args.x.extent[1];
  const auto* sums = static_cast<const float*>(partial);
  const std::int64_t blocks = tile::RowBlocks::of(exec, args.x.extent[0]).blocks;
  visit_dtype(args.x.dtype, [&]<class T>() {
    for (const TensorRef<1>& target : {args.dweight, args.dbias}) {
      tile::sum_partials<T, tile::Order::loaded>(exec, "katt::layernorm::weight_gradients", sums,
                                                 blocks, 2 * columns, target);
      sums += columns;
    }
  });
}

template <class Exec>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  const std::int64_t rows = tile::RowBlocks::of(exec, args.x.extent[0]).rows;
  void* partial = static_cast<std::byte*>(workspace.data) + statistics_bytes(args);
  launch<true, Step::statistics>(exec, "katt::layernorm::statistics", args, 1, workspace.data);
  launch<true, Step::results>(exec, "katt::layernorm::gradients", args, rows, workspace.data,
                              partial);
  sum_blocks(exec, args, partial);
}

template <class Exec>
void fused_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  const std::int64_t rows = tile::RowBlocks::of(exec, args.x.extent[0]).rows;
  launch<true, Step::all>(exec, "katt::layernorm::backward", args, rows, nullptr, workspace.data);
  sum_blocks(exec, args, workspace.data);
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{
      {.name = "naive",
       .description = "statistics, normalisation apart",
       .workspace_bytes = [](const ForwardArgs& args) { return statistics_bytes(args); },
       .run = naive_forward<Exec>},
      {.name = "fused",
       .description = "one launch, rows stay in cache",
       .rank = 1,
       .run = fused_forward<Exec>}};
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table{
      {.name = "naive",
       .description = "statistics, dx with sums of blocks of rows, their sums",
       .workspace_bytes =
           [](const Exec& exec, const BackwardArgs& args) {
             return statistics_bytes(args) + partial_bytes(exec, args);
           },
       .run = naive_backward<Exec>},
      {.name = "fused",
       .description = "one launch, rows stay in cache, and one for the sums",
       .rank = 1,
       .workspace_bytes = partial_bytes<Exec>,
       .run = fused_backward<Exec>}};
  return table;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::layernorm
