#include "ops/rmsnorm/rmsnorm.hpp"

#include <array>
#include <cmath>
#include <string>

#include "core/check.hpp"
#include "core/error.hpp"
#include "ops/rmsnorm/rmsnorm_backward_kernel.hpp"
#include "ops/rmsnorm/rmsnorm_forward_kernel.hpp"
#include "ops/rmsnorm/rmsnorm_naive.hpp"

namespace katt::rmsnorm {

namespace {

[[noreturn]] void fail(const std::string& message) { throw InputError("rmsnorm: " + message); }

template <int Rank, bool Const>
void check_tensor(const char* name, const BasicTensorRef<Rank, Const>& tensor, Dtype dtype,
                  const std::array<std::int64_t, Rank>& expected) {
  katt::check_tensor<Rank>("rmsnorm", name, tensor, dtype, expected);
}

/// True when an optional tensor is there, by its shape.
template <int Rank, bool Const>
bool has(const BasicTensorRef<Rank, Const>& tensor) {
  return tensor.extent[Rank - 1] > 0;
}

void check_common(std::int64_t hidden, float eps) {
  if (hidden <= 0) fail("hidden " + std::to_string(hidden) + ": expected at least 1");
  if (!(eps >= 0.0F) || !std::isfinite(eps)) {
    fail("eps " + std::to_string(eps) + ": expected a finite number ≥ 0");
  }
}

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
  const auto blocks = tile::RowBlocks::of(exec, args.tokens());
  auto* partial = static_cast<float*>(workspace.data);
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
  return static_cast<std::size_t>(tile::RowBlocks::of(exec, args.tokens()).blocks * args.hidden()) *
         sizeof(float);
}

template <class Exec, class Args>
std::size_t naive_bytes(const Exec& exec, const Args& args) {
  return visit_dtype(args.x.dtype,
                     [&]<class T>() { return impl::naive_workspace_bytes<Exec, T>(exec, args); });
}

constexpr const char* fused_description = "one pass over memory, everything in one kernel";
constexpr const char* stream_description =
    "fused, with stores past the caches: for tensors larger than them";

/// fused has 2.
template <class Args>
int stream_rank(const Args& args) {
  return new_bytes(args) >= tile::stream_variant_bytes ? 3 : 1;
}

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
       .rank = stream_rank<ForwardArgs>,
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
       .rank = stream_rank<BackwardArgs>,
       .supports = tile::stream_support<Exec>(),
       .workspace_bytes = partial_bytes<Exec>,
       .run = fused_backward<Exec, true>}};
  return table;
}

void check(const ForwardArgs& args) {
  const Dtype dtype = args.x.dtype;
  const std::array<std::int64_t, 2> shape = args.x.extent;
  check_common(args.hidden(), args.eps);
  check_tensor<1>("weight", args.weight, dtype, {args.hidden()});
  if (has(args.residual)) {
    check_tensor<2>("residual", args.residual, dtype, shape);
    check_tensor<2>("residual_out", args.residual_out, dtype, shape);
  } else if (has(args.residual_out)) {
    fail("residual_out: given without a residual");
  }
  if (has(args.out)) {
    check_tensor<2>("out", args.out, dtype, shape);
  } else if (args.out_q == nullptr) {
    fail("out: missing, expected it or out_q");
  }
  if ((args.out_q == nullptr) != (args.out_q_scale == nullptr)) {
    fail("out_q and out_q_scale: one is missing, expected both or none");
  }
}

void check(const BackwardArgs& args) {
  const Dtype dtype = args.x.dtype;
  const std::array<std::int64_t, 2> shape = args.x.extent;
  check_common(args.hidden(), args.eps);
  check_tensor<2>("dout", args.dout, dtype, shape);
  check_tensor<1>("weight", args.weight, dtype, {args.hidden()});
  if (has(args.dresidual_out)) check_tensor<2>("dresidual_out", args.dresidual_out, dtype, shape);
  check_tensor<2>("dx", args.dx, dtype, shape);
  check_tensor<1>("dweight", args.dweight, dtype, {args.hidden()});
}

double forward_flops(const ForwardArgs& args) {
  // square and sum 2, two products 2; addition 1; absmax and product 2
  const int each = 4 + (has(args.residual) ? 1 : 0) + (args.out_q != nullptr ? 2 : 0);
  return each * static_cast<double>(args.x.size());
}

double backward_flops(const BackwardArgs& args) {
  // g 1, two sums 4, x̂ 1, dx 3, dweight 2; addition 1
  return (11 + (has(args.dresidual_out) ? 1 : 0)) * static_cast<double>(args.x.size());
}

double forward_bytes(const ForwardArgs& args) {
  const auto element = static_cast<double>(size_of(args.x.dtype));
  const int tensors = 1 + (has(args.residual) ? 2 : 0) + (has(args.out) ? 1 : 0);
  const double quantised = args.out_q == nullptr ? 0.0
                                                 : static_cast<double>(args.x.size()) +
                                                       4.0 * static_cast<double>(args.tokens());
  return element *
             (tensors * static_cast<double>(args.x.size()) + static_cast<double>(args.hidden())) +
         quantised;
}

double backward_bytes(const BackwardArgs& args) {
  const auto element = static_cast<double>(size_of(args.x.dtype));
  const int tensors = 3 + (has(args.dresidual_out) ? 1 : 0);
  return element *
         (tensors * static_cast<double>(args.x.size()) + 2.0 * static_cast<double>(args.hidden()));
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(forward, ForwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(backward, BackwardArgs)

}  // namespace katt::rmsnorm
