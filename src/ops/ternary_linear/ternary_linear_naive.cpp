#include "ops/ternary_linear/ternary_linear_naive.hpp"

#include <algorithm>

#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/linear/gemm/naive.hpp"
#include "ops/ternary_linear/ternary_linear_kernels.hpp"

namespace katt::ternary_linear::impl {

namespace {

/// Tokens up to which the matrix-vector product is the faster one: it reads the weights once a
/// token.
constexpr std::int64_t few_tokens = 4;

/// out(token, ·) = x · W(·, ·)ᵀ for one token: the rows of W as they lie in memory, four at a time
/// so that a load of x serves four rows and as many chains of sums run side by side.
template <class Exec, class T>
struct MatrixVector {
  using Memory = typename Exec::memory_space;
  using Team = tile::RowTeam<Exec>;
  using Vec = tile::VecOf<Exec>;
  static constexpr int block_rows = 4;
  static constexpr int team_rows = is_host_v<Exec> ? 32 : block_rows;

  StridedView<const T, 2, Memory> weight;
  const T* x;
  StridedView<T, 2, Memory> out;
  std::int64_t token;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team, std::int64_t item) const {
    const auto rows = static_cast<std::int64_t>(weight.extent(0));
    std::int64_t row = item * team_rows;
    const std::int64_t end = Kokkos::min<std::int64_t>(row + team_rows, rows);
    for (; row + block_rows <= end; row += block_rows) block<block_rows>(team, row);
    for (; row < end; ++row) block<1>(team, row);
  }

  template <int R>
  KOKKOS_INLINE_FUNCTION void block(const Team& team, std::int64_t row) const {
    tile::RowSum<Exec> sums[R];
    const T* w = &weight(row, 0);
    const auto stride = static_cast<std::int64_t>(weight.stride(0));
    tile::for_columns<Exec>(team, 0, static_cast<std::int64_t>(weight.extent(1)),
                            [&]<class V>(std::int64_t c) {
                              const V value = tile::load<V>(x + c);
                              for (int r = 0; r < R; ++r) {
                                sums[r].multiply_add(tile::load<V>(w + r * stride + c), value);
                              }
                            });
    for (int r = 0; r < R; ++r) {
      const float sum = sums[r].total(team);
      if (team.team_rank() == 0) out(token, row + r) = static_cast<T>(sum);
    }
  }
};

/// x_d at the beginning of the workspace.
template <class Exec, class T>
ConstTensorRef<2> fake_quantise(const Exec& exec, const ConstTensorRef<2>& x, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  auto* stored = static_cast<T*>(workspace.data);
  tile::for_each_row(exec, "katt::ternary_linear::naive_quantise", x.extent[0],
                     FakeQuantise<Exec, T, T>{x.view<T, Memory>(), stored});
  return {stored, x.dtype, x.extent};
}

Workspace after(Workspace workspace, std::size_t bytes) {
  return {static_cast<std::byte*>(workspace.data) + bytes, workspace.bytes - bytes};
}

linear::GemmArgs product(const ConstTensorRef<2>& x, const ForwardArgs& args) {
  return {.a = x, .b = args.dense, .c = args.out, .trans_b = true};
}

linear::GemmArgs input_gradient(const BackwardArgs& args) {
  return {.a = args.dout, .b = args.dense, .c = args.dx};
}

linear::GemmArgs weight_gradient(const ConstTensorRef<2>& x, const BackwardArgs& args) {
  return {.a = args.dout, .b = x, .c = args.dweight, .trans_a = true};
}

}  // namespace

template <class Exec, class T>
std::size_t naive_forward_bytes(const Exec& exec, const ForwardArgs& args) {
  const ConstTensorRef<2> x(nullptr, args.x.dtype, args.x.extent);
  return aligned_bytes(x) + (args.tokens() <= few_tokens
                                 ? 0
                                 : linear::naive_gemm_workspace_bytes(exec, product(x, args)));
}

template <class Exec, class T>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  const ConstTensorRef<2> x = fake_quantise<Exec, T>(exec, args.x, workspace);
  if (args.tokens() > few_tokens) {
    linear::naive_gemm(exec, product(x, args), after(workspace, aligned_bytes(x)),
                       "katt::ternary_linear::naive_gemm");
    return;
  }
  using Functor = MatrixVector<Exec, T>;
  const std::int64_t teams = (args.out_features() + Functor::team_rows - 1) / Functor::team_rows;
  for (std::int64_t t = 0; t < args.tokens(); ++t) {
    tile::for_each_row(
        exec, "katt::ternary_linear::naive_matrix_vector", teams,
        Functor{args.dense.view<T, Memory>(), static_cast<const T*>(x.data) + t * x.stride[0],
                args.out.view<T, Memory>(), t});
  }
}

template <class Exec, class T>
std::size_t naive_backward_bytes(const Exec& exec, const BackwardArgs& args) {
  const ConstTensorRef<2> x(nullptr, args.x.dtype, args.x.extent);
  return aligned_bytes(x) +
         std::max(linear::naive_gemm_workspace_bytes(exec, input_gradient(args)),
                  linear::naive_gemm_workspace_bytes(exec, weight_gradient(x, args)));
}

template <class Exec, class T>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  const ConstTensorRef<2> x = fake_quantise<Exec, T>(exec, args.x, workspace);
  const Workspace rest = after(workspace, aligned_bytes(x));
  linear::naive_gemm(exec, input_gradient(args), rest, "katt::ternary_linear::naive_dx");
  linear::naive_gemm(exec, weight_gradient(x, args), rest, "katt::ternary_linear::naive_dweight");
}

#define KATT_INSTANTIATE_TERNARY_NAIVE(Exec, T)                                         \
  template std::size_t naive_forward_bytes<Exec, T>(const Exec&, const ForwardArgs&);   \
  template void naive_forward<Exec, T>(const Exec&, const ForwardArgs&, Workspace);     \
  template std::size_t naive_backward_bytes<Exec, T>(const Exec&, const BackwardArgs&); \
  template void naive_backward<Exec, T>(const Exec&, const BackwardArgs&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_TERNARY_NAIVE, float)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_TERNARY_NAIVE, f16)
KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_TERNARY_NAIVE, bf16)

}  // namespace katt::ternary_linear::impl
