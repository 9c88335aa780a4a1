#include "ops/ternary_linear/ternary_linear_packed.hpp"

#include <algorithm>
#include <type_traits>

#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ops/ternary_linear/ternary_linear_few_tokens.hpp"
#include "ops/ternary_linear/ternary_linear_kernels.hpp"
#include "ops/ternary_linear/ternary_linear_tiles.hpp"

namespace katt::ternary_linear::impl {

namespace {

/// Blocks of weights in a panel of the backward pass: 8192 or 10240 columns, most weights whole. The product of a
/// narrower one packs dout once more: with 1024 columns dx and dweight took 2 to 16 % longer.
constexpr std::int64_t panel_blocks = 32;

/// The quantised tokens in the first `total` bytes of a workspace.
struct TokenLayout {
  std::int64_t stride;
  std::size_t inverse, sum, total;

  TokenLayout(const ConstTensorRef<2>& x, PackFormat format) {
    const std::int64_t block = block_weights(format);
    stride = (x.extent[1] + block - 1) / block * block;
    inverse = aligned_bytes<std::int8_t>(x.extent[0] * stride);
    sum = inverse + aligned_bytes<float>(x.extent[0]);
    total = sum + aligned_bytes<std::int32_t>(x.extent[0]);
  }
  QuantisedTokens at(void* workspace) const {
    auto* base = static_cast<std::byte*>(workspace);
    return {reinterpret_cast<std::int8_t*>(base), reinterpret_cast<float*>(base + inverse),
            reinterpret_cast<std::int32_t*>(base + sum), stride};
  }
};

template <class Exec, class T>
QuantisedTokens quantise(const Exec& exec, const ConstTensorRef<2>& x, PackFormat format,
                         Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const QuantisedTokens tokens = TokenLayout(x, format).at(workspace.data);
  tile::for_each_row(exec, "katt::ternary_linear::quantise", x.extent[0],
                     QuantiseTokens<Exec, T>{x.view<T, Memory>(), tokens});
  return tokens;
}

/// The product of a panel (out_features, columns) of the weight, and that of all tokens.
linear::GemmArgs input_gradient(const BackwardArgs& args, const TensorRef<2>& panel,
                                std::int64_t first) {
  return {.a = args.dout, .b = panel, .c = columns_of(args.dx, first, panel.extent[1])};
}

linear::GemmArgs weight_gradient(const BackwardArgs& args, const TensorRef<2>& x) {
  return {.a = args.dout,
          .b = x,
          .c = args.dweight,
          .trans_a = true,
          .beta = args.adds_dweight ? 1.0F : 0.0F};
}

/// Calls f.operator()<Format>() for a run-time format.
template <class F>
void visit_format(PackFormat format, const F& f) {
  if (format == PackFormat::two_bit) return f.template operator()<PackFormat::two_bit>();
  f.template operator()<PackFormat::five_per_byte>();
}

#if defined(KATT_TERNARY_FEW_TOKENS)
/// Calls f.operator()<Unit, Format>() where dx is multiplied straight from the packed weight; else false.
template <class Exec, class T, class F>
bool visit_few(const BackwardArgs& args, PackFormat format, const F& f) {
  const FewTokens unit =
      is_host_v<Exec> ? few_tokens_unit<T>(format, args.tokens()) : FewTokens::panel;
  if (unit == FewTokens::panel) return false;
  visit_few_tokens(unit, [&]<class Unit>() {
    visit_format(format, [&]<PackFormat Format>() { f.template operator()<Unit, Format>(); });
  });
  return true;
}
#endif

/// x_d and the panel are rounded to the dtype, as naive rounds them.
template <class T>
struct BackwardLayout {
  static constexpr Dtype factor = dtype_of<T>;
  std::int64_t columns;
  std::size_t panel, gemm, total;  ///< offsets in bytes; at 0 lies x_d

  template <class Exec>
  BackwardLayout(const Exec& exec, const BackwardArgs& args, PackFormat format)
      : columns(std::min(args.in_features(), panel_blocks * block_weights(format))) {
    const TensorRef<2> x(nullptr, factor, args.x.extent);
    panel = aligned_bytes(x);
    std::size_t products = linear::gemm_workspace_bytes(exec, weight_gradient(args, x));
#if defined(KATT_TERNARY_FEW_TOKENS)
    gemm = panel;  // dweight is there before dx begins
    total = panel + products;
    if (visit_few<Exec, T>(args, format, [&]<class Unit, PackFormat Format>() {
          const FewTokensPlan<Unit, Format> plan(args.dout, args.in_features());
          total = panel + std::max(products, plan.bytes());
        })) {
      return;
    }
#endif
    gemm = panel + aligned_bytes(TensorRef<2>(nullptr, factor, {args.out_features(), columns}));
    const std::int64_t last = args.in_features() - (args.in_features() - 1) / columns * columns;
    for (const std::int64_t width : {columns, last}) {
      const TensorRef<2> weight(nullptr, factor, {args.out_features(), width});
      products =
          std::max(products, linear::gemm_workspace_bytes(exec, input_gradient(args, weight, 0)));
    }
    total = gemm + products;
  }
};

}  // namespace

template <class Exec>
bool is_on_tiles([[maybe_unused]] const ForwardArgs& args) {
#if defined(KATT_TERNARY_TILES)
  return is_host_v<Exec> && uses_tiles(args.tokens());
#else
  return false;
#endif
}

template <class Exec, class T>
std::size_t packed_forward_bytes(const Exec& /*exec*/, const ForwardArgs& args, PackFormat format) {
  const TokenLayout layout(args.x, format);
#if defined(KATT_TERNARY_TILES)
  if (is_on_tiles<Exec>(args)) {
    return layout.total + TokenPanels(args.tokens(), layout.stride, nullptr).bytes();
  }
#endif
  return layout.total;
}

template <class Exec, class T>
void packed_forward(const Exec& exec, const ForwardArgs& args, PackFormat format,
                    Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const QuantisedTokens tokens = quantise<Exec, T>(exec, args.x, format, workspace);
  visit_format(format, [&]<PackFormat Format>() {
#if defined(KATT_TERNARY_TILES)
    if (is_on_tiles<Exec>(args)) {
      auto* panels = static_cast<std::byte*>(workspace.data) + TokenLayout(args.x, format).total;
      return tile_forward<T, Format>(exec, args, tokens, panels);
    }
#endif
    using Functor = PackedForward<Exec, T, Format>;
    tile::for_each_row(exec, "katt::ternary_linear::packed_forward",
                       (args.out_features() + Functor::team_rows - 1) / Functor::team_rows,
                       Functor{args.packed.rows(), args.packed.scales(), args.packed.row_bytes(),
                               tokens, args.out.view<T, Memory>()});
  });
}

template <class Exec, class T>
std::size_t packed_backward_bytes(const Exec& exec, const BackwardArgs& args, PackFormat format) {
  return BackwardLayout<T>(exec, args, format).total;
}

template <class Exec, class T>
void packed_backward(const Exec& exec, const BackwardArgs& args, PackFormat format,
                     Workspace workspace) {
  using Memory = typename Exec::memory_space;
  constexpr Dtype factor = dtype_of<T>;
  const BackwardLayout<T> layout(exec, args, format);
  auto* base = static_cast<std::byte*>(workspace.data);
  const Workspace rest(base + layout.gemm, workspace.bytes - layout.gemm);
  const TensorRef<2> x(base, factor, args.x.extent);
  tile::for_each_row(exec, "katt::ternary_linear::packed_quantise", args.tokens(),
                     FakeQuantise<Exec, T>{args.x.view<T, Memory>(), static_cast<T*>(x.data)});
  linear::gemm(exec, weight_gradient(args, x), rest, "katt::ternary_linear::packed_dweight");
#if defined(KATT_TERNARY_FEW_TOKENS)
  if (visit_few<Exec, T>(args, format, [&]<class Unit, PackFormat Format>() {
        few_tokens_dx<Exec, T, Unit, Format>(exec, args.packed, args.dout, args.dx, rest.data);
      })) {
    return;
  }
#endif
  for (std::int64_t first = 0; first < args.in_features(); first += layout.columns) {
    const std::int64_t columns = std::min(layout.columns, args.in_features() - first);
    const TensorRef<2> weights(base + layout.panel, factor, {args.out_features(), columns});
    dequantise(exec, args.packed, first, weights);
    linear::gemm(exec, input_gradient(args, weights, first), rest,
                 "katt::ternary_linear::packed_dx");
  }
}

#define KATT_INSTANTIATE_TERNARY_TILES(Exec) template bool is_on_tiles<Exec>(const ForwardArgs&);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_TERNARY_TILES)

#define KATT_INSTANTIATE_PACKED(Exec, T)                                                           \
  template std::size_t packed_forward_bytes<Exec, T>(const Exec&, const ForwardArgs&, PackFormat); \
  template void packed_forward<Exec, T>(const Exec&, const ForwardArgs&, PackFormat, Workspace);   \
  template std::size_t packed_backward_bytes<Exec, T>(const Exec&, const BackwardArgs&,            \
                                                      PackFormat);                                 \
  template void packed_backward<Exec, T>(const Exec&, const BackwardArgs&, PackFormat, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PACKED, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PACKED, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_PACKED, bf16)

}  // namespace katt::ternary_linear::impl
