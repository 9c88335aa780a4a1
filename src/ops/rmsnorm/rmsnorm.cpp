#include "ops/rmsnorm/rmsnorm.hpp"

#include <array>
#include <cmath>
#include <string>

#include "core/error.hpp"
#include "ops/rmsnorm/rmsnorm_backward_kernel.hpp"
#include "ops/rmsnorm/rmsnorm_forward_kernel.hpp"
#include "ops/rmsnorm/rmsnorm_naive.hpp"

namespace katt::rmsnorm {

namespace {

[[noreturn]] void fail(const std::string& message) { throw InputError("rmsnorm: " + message); }

template <std::size_t Rank>
std::string shape_text(const std::array<std::int64_t, Rank>& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < Rank; ++axis) {
    text += (axis > 0 ? ", " : "") + std::to_string(shape[axis]);
  }
  return text + ")";
}

template <int Rank>
void check_tensor(const char* name, const BasicTensorRef<Rank, true>& tensor, Dtype dtype,
                  const std::array<std::int64_t, Rank>& expected) {
  if (tensor.extent != expected) {
    fail(std::string(name) + ": holds shape " + shape_text(tensor.extent) + ", expected " +
         shape_text(expected));
  }
  if (tensor.dtype != dtype) {
    fail(std::string(name) + ": holds " + std::string(name_of(tensor.dtype)) + ", expected " +
         std::string(name_of(dtype)));
  }
}

/// Whether an optional tensor is there, by its shape.
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

/// Which stores the fused kernels make.
enum class Stores : std::uint8_t { cached, streamed };

template <class Exec, Stores kind>
inline constexpr bool streams_v = kind == Stores::streamed&& tile::can_stream_v<Exec>;

template <class Exec, Stores kind>
Status supports() {
  if (kind == Stores::streamed && !tile::can_stream_v<Exec>) {
    return Status::skipped("streaming stores are built for hosts with AVX-512");
  }
  return Status::ok();
}

template <Stores kind>
constexpr const char* variant_name = kind == Stores::streamed ? "stream" : "fused";
template <Stores kind>
constexpr const char* variant_description =
    kind == Stores::streamed ? "fused, with stores past the caches: for tensors larger than them"
                             : "one pass over memory, everything in one kernel";

template <class Exec, Stores kind>
Variant<Exec, ForwardArgs> fused_forward() {
  return {
      .name = variant_name<kind>,
      .description = variant_description<kind>,
      .tiles = {},
      .supports = [](const Exec&, const ForwardArgs&, Tile) { return supports<Exec, kind>(); },
      .workspace_bytes = [](const Exec&, const ForwardArgs&, Tile) { return std::size_t{0}; },
      .run =
          [](const Exec& exec, const ForwardArgs& args, Tile, Workspace) {
            visit_dtype(args.x.dtype, [&]<class T>() {
              const auto launch = [&]<bool Stream>() {
                const impl::Forward<Exec, T, Stream> kernel(exec, args);
                tile::for_each_row(exec, "katt::rmsnorm::forward", kernel.blocks, kernel);
              };
              if (streams_v<Exec, kind> && impl::Forward<Exec, T, true>::can_stream(args)) {
                launch.template operator()<streams_v<Exec, kind>>();
              } else {
                launch.template operator()<false>();
              }
            });
          },
  };
}

template <class Exec, Stores kind>
Variant<Exec, BackwardArgs> fused_backward() {
  return {
      .name = variant_name<kind>,
      .description = variant_description<kind>,
      .tiles = {},
      .supports = [](const Exec&, const BackwardArgs&, Tile) { return supports<Exec, kind>(); },
      .workspace_bytes =
          [](const Exec&, const BackwardArgs& args, Tile) {
            return static_cast<std::size_t>(impl::Partition::of(args.tokens()).blocks *
                                            args.hidden()) *
                   sizeof(float);
          },
      .run =
          [](const Exec& exec, const BackwardArgs& args, Tile, Workspace workspace) {
            const std::int64_t blocks = impl::Partition::of(args.tokens()).blocks;
            auto* partial = static_cast<float*>(workspace.data);
            visit_dtype(args.x.dtype, [&]<class T>() {
              const auto launch = [&]<bool Stream>() {
                const impl::Backward<Exec, T, Stream> kernel(args, partial);
                tile::for_each_row(exec, "katt::rmsnorm::backward", blocks, kernel);
              };
              if (streams_v<Exec, kind> && impl::rows_are_streamable<T>(args.dx)) {
                launch.template operator()<streams_v<Exec, kind>>();
              } else {
                launch.template operator()<false>();
              }
              impl::sum_partials<Exec, T, impl::Order::loaded>(
                  exec, "katt::rmsnorm::weight_gradient", partial, blocks, args.hidden(),
                  args.dweight);
            });
          },
  };
}

template <class Exec>
Variant<Exec, ForwardArgs> naive_forward() {
  return {
      .name = "naive",
      .description = "addition, statistics, normalisation, weight and quantisation apart",
      .tiles = {},
      .supports = [](const Exec&, const ForwardArgs&, Tile) { return Status::ok(); },
      .workspace_bytes =
          [](const Exec&, const ForwardArgs& args, Tile) {
            return visit_dtype(args.x.dtype,
                               [&]<class T>() { return impl::naive_workspace_bytes<T>(args); });
          },
      .run =
          [](const Exec& exec, const ForwardArgs& args, Tile, Workspace workspace) {
            visit_dtype(args.x.dtype,
                        [&]<class T>() { impl::naive_forward<Exec, T>(exec, args, workspace); });
          },
  };
}

template <class Exec>
Variant<Exec, BackwardArgs> naive_backward() {
  return {
      .name = "naive",
      .description = "statistics, products, means, dx and column sums apart",
      .tiles = {},
      .supports = [](const Exec&, const BackwardArgs&, Tile) { return Status::ok(); },
      .workspace_bytes =
          [](const Exec&, const BackwardArgs& args, Tile) {
            return visit_dtype(args.x.dtype,
                               [&]<class T>() { return impl::naive_workspace_bytes<T>(args); });
          },
      .run =
          [](const Exec& exec, const BackwardArgs& args, Tile, Workspace workspace) {
            visit_dtype(args.x.dtype,
                        [&]<class T>() { impl::naive_backward<Exec, T>(exec, args, workspace); });
          },
  };
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{naive_forward<Exec>(),
                                               fused_forward<Exec, Stores::cached>(),
                                               fused_forward<Exec, Stores::streamed>()};
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table{naive_backward<Exec>(),
                                                fused_backward<Exec, Stores::cached>(),
                                                fused_backward<Exec, Stores::streamed>()};
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

template <class Exec>
std::size_t workspace_bytes(const Exec& exec, const ForwardArgs& args, const Config& config) {
  check(args);
  return forward_variants<Exec>().workspace_bytes(exec, args, config);
}

template <class Exec>
std::size_t workspace_bytes(const Exec& exec, const BackwardArgs& args, const Config& config) {
  check(args);
  return backward_variants<Exec>().workspace_bytes(exec, args, config);
}

template <class Exec>
Status forward(const Exec& exec, const ForwardArgs& args, const Config& config,
               Workspace workspace) {
  check(args);
  return forward_variants<Exec>().run(exec, args, config, workspace);
}

template <class Exec>
Status backward(const Exec& exec, const BackwardArgs& args, const Config& config,
                Workspace workspace) {
  check(args);
  return backward_variants<Exec>().run(exec, args, config, workspace);
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

#define KATT_INSTANTIATE_RMSNORM(Exec)                                                        \
  template std::size_t workspace_bytes<Exec>(const Exec&, const ForwardArgs&, const Config&); \
  template std::size_t workspace_bytes<Exec>(const Exec&, const BackwardArgs&, const Config&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PASSES)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_RMSNORM)

}  // namespace katt::rmsnorm
