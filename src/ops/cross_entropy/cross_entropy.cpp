#include "ops/cross_entropy/cross_entropy.hpp"

#include <string>

#include "core/error.hpp"
#include "core/parts.hpp"
#include "core/views.hpp"
#include "ops/cross_entropy/cross_entropy_kernels.hpp"

namespace katt::cross_entropy {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw InputError("cross_entropy: " + message);
}

void check_shape(const char* name, const ConstTensorRef<2>& tensor, Dtype dtype, std::int64_t rows,
                 std::int64_t columns) {
  if (tensor.extent[0] != rows || tensor.extent[1] != columns || tensor.dtype != dtype) {
    fail(std::string(name) + ": holds (" + std::to_string(tensor.extent[0]) + ", " +
         std::to_string(tensor.extent[1]) + ") " + std::string(name_of(tensor.dtype)) +
         ", expected (" + std::to_string(rows) + ", " + std::to_string(columns) + ") " +
         std::string(name_of(dtype)));
  }
}

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
        impl::StoredSoftmax<Exec, T, false>{args.logits.view<T, Memory>(),
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
        impl::StoredSoftmax<Exec, T, true>{args.logits.view<T, Memory>(), {}, stored});
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

void check(const ForwardArgs& args) {
  if (args.vocab() < 1) fail("logits: holds no classes, expected at least 1");
  if (args.loss.extent[0] != 1 || args.loss.dtype != Dtype::f32) {
    fail("loss: holds " + std::to_string(args.loss.extent[0]) + " values of " +
         std::string(name_of(args.loss.dtype)) + ", expected 1 of f32");
  }
  if (args.statistics) check_shape("statistics", args.statistics, Dtype::f32, args.tokens(), 2);
}

void check(const BackwardArgs& args) {
  if (args.vocab() < 1) fail("logits: holds no classes, expected at least 1");
  check_shape("statistics", args.statistics, Dtype::f32, args.tokens(), 2);
  check_shape("dlogits", args.dlogits, args.logits.dtype, args.tokens(), args.vocab());
}

double forward_flops(const ForwardArgs& args) {
  return 4.0 * static_cast<double>(args.logits.size());
}

double backward_flops(const BackwardArgs& args) {
  return 3.0 * static_cast<double>(args.logits.size());
}

double forward_bytes(const ForwardArgs& args) {
  const double statistics = args.statistics ? 8.0 : 0.0;
  return static_cast<double>(stored_bytes(args.logits)) +
         static_cast<double>(args.tokens()) * (8.0 + statistics);
}

double backward_bytes(const BackwardArgs& args) {
  return 2.0 * static_cast<double>(stored_bytes(args.logits)) +
         16.0 * static_cast<double>(args.tokens());
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::cross_entropy
