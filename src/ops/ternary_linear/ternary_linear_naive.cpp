#include "ops/ternary_linear/ternary_linear_naive.hpp"

#include <algorithm>

#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/linear/gemm/naive.hpp"
#include "ops/ternary_linear/ternary_linear_kernels.hpp"

namespace katt::ternary_linear::impl {

namespace {

/// x_d at the beginning of the workspace.
template <class Exec, class T>
ConstTensorRef<2> fake_quantise(const Exec& exec, const ConstTensorRef<2>& x, Workspace workspace) {
  using Memory = typename Exec::memory_space;
  auto* stored = static_cast<T*>(workspace.data);
  tile::for_each_row(exec, "katt::ternary_linear::naive_quantise", x.extent[0],
                     FakeQuantise<Exec, T>{x.view<T, Memory>(), stored});
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
  return aligned_bytes(x) + linear::naive_gemm_workspace_bytes(exec, product(x, args));
}

template <class Exec, class T>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  const ConstTensorRef<2> x = fake_quantise<Exec, T>(exec, args.x, workspace);
  linear::naive_gemm(exec, product(x, args), after(workspace, aligned_bytes(x)),
                     "katt::ternary_linear::naive_gemm");
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
