#include "ops/cross_entropy/cross_entropy.hpp"

#include <string>

#include "core/error.hpp"
#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/cross_entropy/cross_entropy_kernels.hpp"

namespace katt::cross_entropy {

namespace {

std::size_t stored_bytes(const ConstTensorRef<2>& logits) {
  return static_cast<std::size_t>(logits.size()) * size_of(logits.dtype);
}

template <class Exec>
struct Forward {
  using Memory = typename Exec::memory_space;

  const Exec& exec;
  const ForwardArgs& args;
  impl::Targets targets{args.targets, args.ignore_index, args.vocab()};
  std::byte* workspace;

  float* token_losses() const { return reinterpret_cast<float*>(workspace); }

  template <class T>
  void fused() const {
    tile::for_each_wide_row(
        exec, "katt::cross_entropy::fused_forward", args.tokens(),
        impl::FusedForward<Exec, T>{args.logits.view<T, Memory>(), targets,
                                    args.statistics.view<float, Memory>(), token_losses()},
        tile::are_chunks(args.logits));
    mean();
  }

  template <class T>
  void naive() const {
    auto* stored = reinterpret_cast<T*>(workspace + aligned_bytes<float>(args.tokens()));
    tile::for_each_row(
        exec, "katt::cross_entropy::naive_log_softmax", args.tokens(),
        impl::StoredSoftmax<Exec, T, false>{args.logits.view<T, Memory>(), targets,
                                            args.statistics.view<float, Memory>(), stored});
    Kokkos::parallel_for(
        "katt::cross_entropy::naive_gather",
        Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, args.tokens()),
        impl::GatherLoss<T>{stored, targets, token_losses()});
    mean();
  }

  void mean() const {
    tile::for_each_row(exec, "katt::cross_entropy::mean", 1,
                       impl::MeanLoss<Exec>{token_losses(), targets, args.tokens(),
                                            static_cast<float*>(args.loss.data)});
  }
};

template <class Exec>
struct Backward {
  using Memory = typename Exec::memory_space;

  const Exec& exec;
  const BackwardArgs& args;
  impl::Targets targets{args.targets, args.ignore_index, args.vocab()};
  std::byte* workspace;

  float* factor() const {
    auto* target = reinterpret_cast<float*>(workspace);
    tile::for_each_row(exec, "katt::cross_entropy::factor", 1,
                       impl::GradientFactor<Exec>{targets, args.tokens(), args.dloss, target});
    return target;
  }

  template <class T>
  void fused() const {
    const float* scale = factor();
    tile::for_each_wide_row(exec, "katt::cross_entropy::fused_backward", args.tokens(),
                            impl::FusedBackward<Exec, T>{args.logits.view<T, Memory>(), targets,
                                                         args.statistics.view<float, Memory>(),
                                                         scale, args.dlogits.view<T, Memory>()},
                            tile::are_chunks(args.logits, args.dlogits));
  }

  template <class T>
  void naive() const {
    const float* scale = factor();
    auto* stored = reinterpret_cast<T*>(workspace + aligned_bytes<float>(1));
    tile::for_each_row(
        exec, "katt::cross_entropy::naive_softmax", args.tokens(),
        impl::StoredSoftmax<Exec, T, true>{args.logits.view<T, Memory>(), targets, {}, stored});
    tile::for_each_row(
        exec, "katt::cross_entropy::naive_subtract", args.tokens(),
        impl::SubtractTarget<Exec, T>{stored, targets, scale, args.dlogits.view<T, Memory>()});
  }
};

/// Makes a pass of the arguments and calls f.operator()<T>(pass) for the dtype of the logits.
template <template <class> class Pass, class Exec, class Args, class F>
void visit(const Exec& exec, const Args& args, Workspace workspace, const F& f) {
  const Pass<Exec> pass{
      .exec = exec, .args = args, .workspace = static_cast<std::byte*>(workspace.data)};
  visit_dtype(args.logits.dtype, [&]<class T>() { f.template operator()<T>(pass); });
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{
      {.name = "naive",
       .description = "log-softmax stored, then gathered, then averaged",
       .workspace_bytes =
           [](const ForwardArgs& args) {
             return aligned_bytes<float>(args.tokens()) + stored_bytes(args.logits);
           },
       .run =
           [](const Exec& exec, const ForwardArgs& args, Workspace workspace) {
             visit<Forward>(exec, args, workspace,
                            []<class T>(const auto& pass) { pass.template naive<T>(); });
           }},
      {.name = "fused",
       .description = "online log-sum-exp, one pass over the logits",
       .rank = 1,
       .workspace_bytes =
           [](const ForwardArgs& args) { return aligned_bytes<float>(args.tokens()); },
       .run =
           [](const Exec& exec, const ForwardArgs& args, Workspace workspace) {
             visit<Forward>(exec, args, workspace,
                            []<class T>(const auto& pass) { pass.template fused<T>(); });
           }}};
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table{
      {.name = "naive",
       .description = "softmax stored, then the target subtracted",
       .workspace_bytes =
           [](const BackwardArgs& args) {
             return aligned_bytes<float>(1) + stored_bytes(args.logits);
           },
       .run =
           [](const Exec& exec, const BackwardArgs& args, Workspace workspace) {
             visit<Backward>(exec, args, workspace,
                             []<class T>(const auto& pass) { pass.template naive<T>(); });
           }},
      {.name = "fused",
       .description = "one pass, from the statistics of the forward pass",
       .rank = 1,
       .workspace_bytes = aligned_bytes<float>(1),
       .run = [](const Exec& exec, const BackwardArgs& args, Workspace workspace) {
         visit<Backward>(exec, args, workspace,
                         []<class T>(const auto& pass) { pass.template fused<T>(); });
       }}};
  return table;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::cross_entropy
