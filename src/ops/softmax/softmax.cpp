#include "ops/softmax/softmax.hpp"

#include "core/execution.hpp"
#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/softmax/softmax_kernels.hpp"

namespace katt::softmax {

namespace {

/// out = softmax(x) in four launches; `values` holds a float for every row.
template <class Exec, class T>
void naive_softmax(const Exec& exec, const ConstTensorRef<2>& x, const TensorRef<2>& out,
                   float* values) {
  using Memory = typename Exec::memory_space;
  const std::int64_t rows = x.extent[0];
  const auto in = x.view<T, Memory>();
  const auto target = out.view<T, Memory>();
  tile::for_each_row(exec, "katt::softmax::naive_max", rows,
                     impl::LargestOfRow<Exec, T>{in, values});
  tile::for_each_row(exec, "katt::softmax::naive_exp", rows,
                     impl::Exponential<Exec, T>{in, values, target});
  tile::for_each_row(exec, "katt::softmax::naive_sum", rows,
                     impl::SumOfRow<Exec, T>{target, {}, values});
  tile::for_each_row(exec, "katt::softmax::naive_divide", rows,
                     impl::Divide<Exec, T>{values, target});
}

template <class Exec>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  visit_dtype(args.x.dtype, [&]<class T>() {
    naive_softmax<Exec, T>(exec, args.x, args.out, static_cast<float*>(workspace.data));
  });
}

template <class Exec>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const std::int64_t rows = args.x.extent[0];
  auto* values = static_cast<float*>(workspace.data);
  const TensorRef<2> p(static_cast<std::byte*>(workspace.data) + aligned_bytes<float>(rows),
                       args.x.dtype, args.x.extent);
  visit_dtype(args.x.dtype, [&]<class T>() {
    naive_softmax<Exec, T>(exec, args.x, p, values);
    const auto probabilities = p.template view<T, Memory>();
    const auto dout = args.dout.template view<T, Memory>();
    tile::for_each_row(exec, "katt::softmax::naive_products", rows,
                       impl::SumOfRow<Exec, T>{probabilities, dout, values});
    tile::for_each_row(
        exec, "katt::softmax::naive_combine", rows,
        impl::Combine<Exec, T>{probabilities, dout, values, args.dx.template view<T, Memory>()});
  });
}

/// Calls launch.operator()<T, stream>(): with streaming stores where they pay for `out`.
template <class Exec, class F>
void with_stores(const TensorRef<2>& out, const F& launch) {
  visit_dtype(out.dtype, [&]<class T>() {
    const auto bytes = out.size() * static_cast<std::int64_t>(sizeof(T));
    const bool lines = tile::is_streamable(out.data) &&
                       (out.extent[0] == 1 || out.stride[0] * sizeof(T) % 64 == 0);
    constexpr bool can_stream = tile::can_stream_v<Exec>;
    if (can_stream && lines && bytes >= tile::stream_variant_bytes) {
      launch.template operator()<T, can_stream>();
    } else {
      launch.template operator()<T, false>();
    }
  });
}

template <class Exec>
void fused_forward(const Exec& exec, const ForwardArgs& args) {
  using Memory = typename Exec::memory_space;
  with_stores<Exec>(args.out, [&]<class T, bool stream>() {
    tile::for_each_wide_row(
        exec, "katt::softmax::fused_forward", args.x.extent[0],
        impl::FusedForward<Exec, T, stream>{args.x.view<T, Memory>(), args.out.view<T, Memory>()},
        tile::are_chunks(args.x, args.out));
  });
}

template <class Exec>
void fused_backward(const Exec& exec, const BackwardArgs& args) {
  using Memory = typename Exec::memory_space;
  with_stores<Exec>(args.dx, [&]<class T, bool stream>() {
    tile::for_each_wide_row(
        exec, "katt::softmax::fused_backward", args.x.extent[0],
        impl::FusedBackward<Exec, T, stream>{args.x.view<T, Memory>(), args.dout.view<T, Memory>(),
                                             args.dx.view<T, Memory>()},
        tile::are_chunks(args.x, args.dout, args.dx));
  });
}

std::size_t naive_forward_bytes(const ForwardArgs& args) {
  return aligned_bytes<float>(args.x.extent[0]);
}
std::size_t naive_backward_bytes(const BackwardArgs& args) {
  return aligned_bytes<float>(args.x.extent[0]) +
         static_cast<std::size_t>(args.x.size()) * size_of(args.x.dtype);
}
}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{
      {.name = "naive",
       .description = "maximum, exponential, sum, division: four launches",
       .workspace_bytes = naive_forward_bytes,
       .run = naive_forward<Exec>},
      {.name = "fused",
       .description = "one launch, rows stay in cache",
       .rank = 1,
       .run = fused_forward<Exec>}};
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table{{.name = "naive",
                                                 .description = "softmax stored, then two launches",
                                                 .workspace_bytes = naive_backward_bytes,
                                                 .run = naive_backward<Exec>},
                                                {.name = "fused",
                                                 .description = "one launch, rows stay in cache",
                                                 .rank = 1,
                                                 .run = fused_backward<Exec>}};
  return table;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::softmax
