#include <algorithm>

#include "core/execution.hpp"
#include "core/parts.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_passes.hpp"

namespace katt::linear_cross_entropy::impl {

namespace {

std::size_t logit_bytes(std::int64_t tokens, std::int64_t vocab, Dtype dtype) {
  return aligned_bytes(static_cast<std::size_t>(tokens * vocab) * size_of(dtype));
}

Workspace after(Workspace workspace, std::size_t bytes) {
  return {static_cast<std::byte*>(workspace.data) + bytes, workspace.bytes - bytes};
}

/// The logits where the caller wants them, or at the beginning of the workspace.
TensorRef<2> logits_of(const ForwardArgs& args, Workspace workspace) {
  if (args.logits) return args.logits;
  return {workspace.data, args.hidden.dtype, {args.tokens(), args.vocab()}};
}

linear::GemmArgs logits_product(const ForwardArgs& args, const TensorRef<2>& logits) {
  return {.a = args.hidden, .b = args.weight, .c = logits, .trans_b = true};
}

cross_entropy::ForwardArgs loss_args(const ForwardArgs& args, const TensorRef<2>& logits) {
  cross_entropy::ForwardArgs loss;
  loss.logits = logits;
  loss.targets = args.targets;
  loss.loss = args.loss;
  loss.statistics = args.statistics;
  loss.ignore_index = args.ignore_index;
  return loss;
}

/// The logits' gradients at the beginning of the workspace.
cross_entropy::BackwardArgs loss_args(const BackwardArgs& args, Workspace workspace) {
  cross_entropy::BackwardArgs loss;
  loss.logits = {nullptr, args.hidden.dtype, {args.tokens(), args.vocab()}};
  if (args.logits) loss.logits = args.logits;
  loss.targets = args.targets;
  loss.statistics = args.statistics;
  loss.dlogits = {workspace.data, args.hidden.dtype, {args.tokens(), args.vocab()}};
  loss.dloss = args.dloss;
  loss.ignore_index = args.ignore_index;
  return loss;
}

linear::GemmArgs hidden_gradient(const BackwardArgs& args, const TensorRef<2>& dlogits) {
  return {.a = dlogits, .b = args.weight, .c = args.dhidden};
}

linear::GemmArgs weight_gradient(const BackwardArgs& args, const TensorRef<2>& dlogits) {
  return {.a = dlogits, .b = args.hidden, .c = args.dweight, .trans_a = true};
}

const Config fused_loss{.variant = "fused"};

}  // namespace

template <class Exec>
std::size_t naive_forward_bytes(const Exec& exec, const ForwardArgs& args) {
  const TensorRef<2> logits = logits_of(args, {});
  const std::size_t stored =
      args.logits ? 0 : logit_bytes(args.tokens(), args.vocab(), args.hidden.dtype);
  return stored + std::max(linear::gemm_workspace_bytes(exec, logits_product(args, logits)),
                           cross_entropy::forward_variants<Exec>().workspace_bytes(
                               exec, loss_args(args, logits), fused_loss));
}

template <class Exec>
void naive_forward(const Exec& exec, const ForwardArgs& args, Workspace workspace) {
  const TensorRef<2> logits = logits_of(args, workspace);
  const Workspace rest = after(
      workspace, args.logits ? 0 : logit_bytes(args.tokens(), args.vocab(), args.hidden.dtype));
  linear::gemm(exec, logits_product(args, logits), rest,
               "katt::linear_cross_entropy::naive_logits");
  (void)cross_entropy::forward(exec, loss_args(args, logits), fused_loss, rest);
}

template <class Exec>
std::size_t naive_backward_bytes(const Exec& exec, const BackwardArgs& args) {
  const cross_entropy::BackwardArgs loss = loss_args(args, {});
  return logit_bytes(args.tokens(), args.vocab(), args.hidden.dtype) +
         std::max({cross_entropy::backward_variants<Exec>().workspace_bytes(exec, loss, fused_loss),
                   linear::gemm_workspace_bytes(exec, hidden_gradient(args, loss.dlogits)),
                   linear::gemm_workspace_bytes(exec, weight_gradient(args, loss.dlogits))});
}

template <class Exec>
void naive_backward(const Exec& exec, const BackwardArgs& args, Workspace workspace) {
  const cross_entropy::BackwardArgs loss = loss_args(args, workspace);
  const Workspace rest =
      after(workspace, logit_bytes(args.tokens(), args.vocab(), args.hidden.dtype));
  (void)cross_entropy::backward(exec, loss, fused_loss, rest);
  linear::gemm(exec, hidden_gradient(args, loss.dlogits), rest,
               "katt::linear_cross_entropy::naive_dhidden");
  linear::gemm(exec, weight_gradient(args, loss.dlogits), rest,
               "katt::linear_cross_entropy::naive_dweight");
}

#define KATT_INSTANTIATE_NAIVE(Exec)                                                 \
  template std::size_t naive_forward_bytes<Exec>(const Exec&, const ForwardArgs&);   \
  template void naive_forward<Exec>(const Exec&, const ForwardArgs&, Workspace);     \
  template std::size_t naive_backward_bytes<Exec>(const Exec&, const BackwardArgs&); \
  template void naive_backward<Exec>(const Exec&, const BackwardArgs&, Workspace);

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_NAIVE)

}  // namespace katt::linear_cross_entropy::impl
