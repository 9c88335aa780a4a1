#include <algorithm>
#include <array>
#include <type_traits>

#include "core/execution.hpp"
#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_kernels.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_passes.hpp"
#include "tile/extents.hpp"
#include "tile/rows/elementwise.hpp"

namespace katt::linear_cross_entropy::impl {

namespace {

/// Memory of a block of logits: on a host so small that caches keep it until it is read again. It has at least
/// least_columns all the same, so that its products stay matrix products.
template <class Exec>
constexpr std::int64_t block_bytes = std::int64_t{is_host_v<Exec> ? 8 : 16} << 20;
constexpr std::int64_t least_columns = 512;
constexpr std::int64_t most_columns = 8192;

/// Both passes cut the vocabulary alike. The gradients of logits in bf16 are rounded, as naive stores them: both factors of their
/// products are bf16 then, which units of their own multiply. In f16 they could vanish, and stay
/// f32.
template <class Args>
bool rounds_gradients(const Args& args) {
  return args.hidden.dtype == Dtype::bf16;
}

/// The workspace: a block of logits where none are kept, one of their rounded gradients where there is
/// one, running values of the tokens, f32 sums of dhidden where its dtype is a narrower one, and what
/// the GEMMs need.
template <class Exec, class Args>
struct WorkspaceParts {
  std::int64_t columns;  ///< of a block
  std::size_t gradients, tokens, sums, gemm;

  explicit WorkspaceParts(const Args& args, bool with_sums) {
    const bool rounded = rounds_gradients(args);
    constexpr bool is_backward = std::is_same_v<Args, BackwardArgs>;
    const std::int64_t element = sizeof(float) + (rounded ? sizeof(bf16) : 0);
    const std::int64_t fitting =
        block_bytes<Exec> / element / std::max<std::int64_t>(1, args.tokens());
    const std::int64_t most = std::clamp(fitting / 16 * 16, least_columns, most_columns);
    const std::int64_t blocks = divide_up(args.vocab(), most);  // all alike
    columns = std::min(args.vocab(), round_up(divide_up(args.vocab(), blocks), 32));
    gradients = args.kept_logits.size() > 0 ? 0 : aligned_bytes<float>(args.tokens() * columns);
    tokens =
        gradients + (rounded && is_backward ? aligned_bytes<bf16>(args.tokens() * columns) : 0);
    sums = tokens + 3 * aligned_bytes<float>(args.tokens());
    gemm = sums + (with_sums ? aligned_bytes<float>(args.hidden.size()) : 0);
  }

  /// Where the logits of the columns from `first` on lie.
  float* block(const Args& args, void* workspace, std::int64_t first) const {
    if (!args.kept_logits) return static_cast<float*>(workspace);
    return static_cast<float*>(args.kept_logits.data) + args.tokens() * first;
  }

  /// Columns of the first block and of the last.
  std::array<std::int64_t, 2> block_widths(const Args& args) const {
    return {columns, args.vocab() - (args.vocab() - 1) / columns * columns};
  }
};

template <class Args>
linear::GemmArgs logits_product(const Args& args, const TensorRef<2>& block, std::int64_t first) {
  return {.a = args.hidden,
          .b = rows_of(args.weight, first, block.extent[1]),
          .c = block,
          .trans_b = true};
}

linear::GemmArgs weight_gradient(const BackwardArgs& args, const TensorRef<2>& block,
                                 std::int64_t first) {
  return {.a = block,
          .b = args.hidden,
          .c = rows_of(args.dweight, first, block.extent[1]),
          .trans_a = true};
}

linear::GemmArgs hidden_gradient(const BackwardArgs& args, const TensorRef<2>& block,
                                 const TensorRef<2>& dhidden, std::int64_t first) {
  return {.a = block,
          .b = rows_of(args.weight, first, block.extent[1]),
          .c = dhidden,
          .beta = first == 0 ? 0.0F : 1.0F};
}

/// dhidden itself, or its sums in f32.
TensorRef<2> hidden_sums(const BackwardArgs& args, void* sums) {
  if (args.dhidden.dtype == Dtype::f32) return args.dhidden;
  return {sums, Dtype::f32, args.dhidden.extent};
}

template <class T>
struct RoundHidden {
  static constexpr int chunks = 2;  ///< f32 and a narrower dtype
  const float* sums;
  std::int64_t columns;
  T* dhidden;
  std::int64_t stride;

  template <class Vec, class Lanes>
  KOKKOS_INLINE_FUNCTION void operator()(std::int64_t row, std::int64_t column, Lanes lanes) const {
    tile::store(dhidden + row * stride + column,
                tile::load<Vec>(sums + row * columns + column, lanes), lanes);
  }
};

}  // namespace

template <class Exec>
std::size_t fused_forward_bytes(const Exec& exec, const ForwardArgs& args) {
  const WorkspaceParts<Exec, ForwardArgs> layout(args, false);
  std::size_t products = 0;
  for (const std::int64_t columns : layout.block_widths(args)) {
    const TensorRef<2> block(nullptr, Dtype::f32, {args.tokens(), columns});
    products =
        std::max(products, linear::gemm_workspace_bytes(exec, logits_product(args, block, 0)));
  }
  return layout.gemm + products;
}

template <class Exec>
void fused_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const WorkspaceParts<Exec, ForwardArgs> layout(args, false);
  auto* base = static_cast<std::byte*>(workspace.data);
  auto* values = reinterpret_cast<float*>(base + layout.tokens);
  const auto step = static_cast<std::int64_t>(aligned_bytes<float>(args.tokens()) / sizeof(float));
  const RunningTokens running{values, values + step, values + 2 * step};
  const Targets targets{args.targets, args.ignore_index, args.vocab()};
  const Workspace rest(base + layout.gemm, workspace.bytes - layout.gemm);

  for (std::int64_t first = 0; first < args.vocab(); first += layout.columns) {
    const std::int64_t columns = std::min(layout.columns, args.vocab() - first);
    float* logits = layout.block(args, base, first);
    const TensorRef<2> block(logits, Dtype::f32, {args.tokens(), columns});
    linear::gemm(exec, logits_product(args, block, first), rest,
                 "katt::linear_cross_entropy::fused_logits");
    tile::for_each_wide_row(exec, "katt::linear_cross_entropy::fused_merge", args.tokens(),
                            MergeBlock<Exec>{logits, first, columns, targets, running},
                            tile::are_chunks(block));
  }
  Kokkos::parallel_for(
      "katt::linear_cross_entropy::fused_finish",
      Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, args.tokens()),
      FinishTokens<Exec>{running, targets, args.statistics.view<float, Memory>(), running.target});
  tile::for_each_row(exec, "katt::linear_cross_entropy::mean", 1,
                     cross_entropy::impl::MeanLoss<Exec>{running.target, targets, args.tokens(),
                                                         static_cast<float*>(args.loss.data)});
}

template <class Exec>
std::size_t fused_backward_bytes(const Exec& exec, const BackwardArgs& args) {
  const WorkspaceParts<Exec, BackwardArgs> layout(args, args.dhidden.dtype != Dtype::f32);
  const TensorRef<2> dhidden = hidden_sums(args, nullptr);
  std::size_t products = 0;
  for (const std::int64_t columns : layout.block_widths(args)) {
    const TensorRef<2> block(nullptr, Dtype::f32, {args.tokens(), columns});
    const TensorRef<2> gradients(nullptr, rounds_gradients(args) ? Dtype::bf16 : Dtype::f32,
                                 block.extent);
    products = std::max(
        {products, linear::gemm_workspace_bytes(exec, logits_product(args, block, 0)),
         linear::gemm_workspace_bytes(exec, weight_gradient(args, gradients, 0)),
         linear::gemm_workspace_bytes(exec, hidden_gradient(args, gradients, dhidden, 0))});
  }
  return layout.gemm + products;
}

template <class Exec>
void fused_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const bool with_sums = args.dhidden.dtype != Dtype::f32;
  const WorkspaceParts<Exec, BackwardArgs> layout(args, with_sums);
  auto* base = static_cast<std::byte*>(workspace.data);
  auto* factor = reinterpret_cast<float*>(base + layout.tokens);
  const TensorRef<2> dhidden = hidden_sums(args, base + layout.sums);
  const Targets targets{args.targets, args.ignore_index, args.vocab()};
  const Workspace rest(base + layout.gemm, workspace.bytes - layout.gemm);

  tile::for_each_row(
      exec, "katt::linear_cross_entropy::factor", 1,
      cross_entropy::impl::GradientFactor<Exec>{targets, args.tokens(), args.dloss, factor});
  for (std::int64_t first = 0; first < args.vocab(); first += layout.columns) {
    const std::int64_t columns = std::min(layout.columns, args.vocab() - first);
    float* logits = layout.block(args, base, first);
    const TensorRef<2> block(logits, Dtype::f32, {args.tokens(), columns});
    if (!args.kept_logits) {
      linear::gemm(exec, logits_product(args, block, first), rest,
                   "katt::linear_cross_entropy::fused_logits");
    }
    const auto gradient = [&]<class T>(T* gradients) {
      const TensorRef<2> made(gradients, dtype_of<T>, {args.tokens(), columns});
      tile::for_each_wide_row(exec, "katt::linear_cross_entropy::fused_gradient", args.tokens(),
                              BlockGradient<Exec, T>{logits, gradients, first, columns, targets,
                                                     args.statistics.view<float, Memory>(), factor},
                              tile::are_chunks(block, made));
      return made;
    };
    const TensorRef<2> gradients = rounds_gradients(args)
                                       ? gradient(reinterpret_cast<bf16*>(base + layout.gradients))
                                       : gradient(logits);
    linear::gemm(exec, weight_gradient(args, gradients, first), rest,
                 "katt::linear_cross_entropy::fused_dweight");
    linear::gemm(exec, hidden_gradient(args, gradients, dhidden, first), rest,
                 "katt::linear_cross_entropy::fused_dhidden");
  }
  if (!with_sums) return;
  visit_dtype(args.dhidden.dtype, [&]<class T>() {
    tile::for_each_wide_vector<RoundHidden<T>::chunks>(
        exec, "katt::linear_cross_entropy::round_dhidden", args.tokens(), args.hidden_size(),
        RoundHidden<T>{static_cast<const float*>(dhidden.data), args.hidden_size(),
                       static_cast<T*>(args.dhidden.data), args.dhidden.stride[0]},
        tile::are_chunks(dhidden, args.dhidden));
  });
}

#define KATT_INSTANTIATE_FUSED(Exec)                                                 \
  template std::size_t fused_forward_bytes<Exec>(const Exec&, const ForwardArgs&);   \
  template void fused_forward<Exec>(const Exec&, const ForwardArgs&, Workspace);     \
  template std::size_t fused_backward_bytes<Exec>(const Exec&, const BackwardArgs&); \
  template void fused_backward<Exec>(const Exec&, const BackwardArgs&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FUSED)

}  // namespace katt::linear_cross_entropy::impl
