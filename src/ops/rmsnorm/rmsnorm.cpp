#include "ops/rmsnorm/rmsnorm.hpp"

#include <algorithm>
#include <string>

#include "ops/rmsnorm/rmsnorm_backward_kernel.hpp"
#include "ops/rmsnorm/rmsnorm_backward_registers.hpp"
#include "ops/rmsnorm/rmsnorm_forward_kernel.hpp"
#include "ops/rmsnorm/rmsnorm_naive.hpp"

namespace katt::rmsnorm {

namespace {

/// Bytes of the tensors that a pass writes, 0 where one of them is an input; without tensors, as
/// for a forecast, they are apart.
std::int64_t new_bytes(const ForwardArgs& args) {
  const auto size = static_cast<std::int64_t>(size_of(args.x.dtype));
  for (const auto* out : {args.out.data, args.residual_out.data}) {
    if (out != nullptr && (out == args.x.data || out == args.residual.data)) return 0;
  }
  return size * (args.out.size() + args.residual_out.size());
}
std::int64_t new_bytes(const BackwardArgs& args) {
  for (const void* in : {args.dout.data, args.x.data, args.dresidual_out.data}) {
    if (in != nullptr && in == args.dx.data) return 0;
  }
  return args.dx.size() * static_cast<std::int64_t>(size_of(args.dx.dtype));
}

/// Stream: stores go past the caches where the rows are aligned for it.
template <class Exec, bool Stream>
void fused_forward(const Exec& exec, const ForwardArgs& args) {
  visit_dtype(args.x.dtype, [&]<class T>() {
    const auto launch = [&]<bool Streamed>() {
      const impl::Forward<Exec, T, Streamed> kernel(exec, args);
      tile::for_each_wide_row(exec, "katt::rmsnorm::forward", kernel.blocks, kernel,
                              kernel.is_wide(args));
    };
    constexpr bool stream = Stream && tile::can_stream_v<Exec>;
    if (stream && impl::Forward<Exec, T, true>::can_stream(args)) {
      launch.template operator()<stream>();
    } else {
      launch.template operator()<false>();
    }
  });
}

template <class Exec, bool Stream>
void fused_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  auto* partial = static_cast<float*>(workspace.data);
#if defined(KATT_HAS_CUDA)
  if constexpr (!is_host_v<Exec>) {
    if (impl::fits_registers(args)) return impl::backward_in_registers(exec, args, partial);
  }
#endif
  const auto blocks = tile::RowBlocks::of(exec, args.tokens());
  visit_dtype(args.x.dtype, [&]<class T>() {
    const auto launch = [&]<bool Streamed>() {
      const impl::Backward<Exec, T, Streamed> kernel(args, blocks, partial);
      tile::for_each_wide_row(exec, "katt::rmsnorm::backward", blocks.blocks, kernel,
                              kernel.is_wide(args));
    };
    constexpr bool stream = Stream && tile::can_stream_v<Exec>;
    if (stream && impl::rows_are_streamable<T>(args.dx)) {
      launch.template operator()<stream>();
    } else {
      launch.template operator()<false>();
    }
    tile::sum_partials<T, tile::Order::loaded>(exec, "katt::rmsnorm::weight_gradient", partial,
                                               blocks.blocks, args.hidden(), args.dweight);
  });
}

template <class Exec>
std::size_t partial_bytes(const Exec& exec, const BackwardArgs& args) {
  std::int64_t blocks = tile::RowBlocks::of(exec, args.tokens()).blocks;
#if defined(KATT_HAS_CUDA)
  // Only pointers tell which kernel runs.
  if constexpr (!is_host_v<Exec>) blocks = std::max(blocks, impl::register_blocks(exec, args));
#endif
  return static_cast<std::size_t>(blocks * args.hidden()) * sizeof(float);
}

template <class Exec, class Args>
std::size_t naive_bytes(const Exec& exec, const Args& args) {
  return visit_dtype(args.x.dtype,
                     [&]<class T>() { return impl::naive_workspace_bytes<Exec, T>(exec, args); });
}

constexpr const char* fused_description = "one pass over memory, everything in one kernel";
constexpr const char* stream_description =
    "fused, with stores past the caches: for tensors larger than them";

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{
      {.name = "naive",
       .description = "addition, statistics, normalisation, weight and quantisation apart",
       .workspace_bytes = naive_bytes<Exec, ForwardArgs>,
       .run =
           [](const Exec& exec, const ForwardArgs& args, Workspace workspace) {
             visit_dtype(args.x.dtype,
                         [&]<class T>() { impl::naive_forward<Exec, T>(exec, args, workspace); });
           }},
      {.name = "fused",
       .description = fused_description,
       .rank = 2,
       .run = fused_forward<Exec, false>},
      {.name = "stream",
       .description = stream_description,
       .rank =
           [](const ForwardArgs& args) {
             return tile::stream_rank(new_bytes(args), args.x.dtype, args.adds() ? 2 : 1);
           },
       .supports = tile::stream_support<Exec>(),
       .run = fused_forward<Exec, true>}};
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table{
      {.name = "naive",
       .description = "statistics, products, means, dx and column sums apart",
       .workspace_bytes = naive_bytes<Exec, BackwardArgs>,
       .run =
           [](const Exec& exec, const BackwardArgs& args, Workspace workspace) {
             visit_dtype(args.x.dtype,
                         [&]<class T>() { impl::naive_backward<Exec, T>(exec, args, workspace); });
           }},
      {.name = "fused",
       .description = fused_description,
       .rank = 2,
       .workspace_bytes = partial_bytes<Exec>,
       .run = fused_backward<Exec, false>},
      {.name = "stream",
       .description = stream_description,
       .rank =
           [](const BackwardArgs& args) {
             return tile::stream_rank(new_bytes(args), args.x.dtype, 1);
           },
       .supports = tile::stream_support<Exec>(),
       .workspace_bytes = partial_bytes<Exec>,
       .run = fused_backward<Exec, true>}};
  return table;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(forward, ForwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(backward, BackwardArgs)

}  // namespace katt::rmsnorm
