#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <Kokkos_Core.hpp>
#include <Kokkos_Profiling_ScopedRegion.hpp>

#include "core/error.hpp"
#include "memory/pool.hpp"
#include "memory/touch.hpp"
#include "op/observer.hpp"
#include "op/variants.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ranks/groups.hpp"

namespace katt::nn {

/// The variant of every operator that the model calls: the fastest that accepts the arguments.
struct Kernels {
  std::string embedding = "auto";
  std::string rmsnorm = "auto";
  std::string linear = "auto";
  std::string rope = "auto";
  std::string attention = "auto";
  std::string swiglu = "auto";
  std::string ternary_linear = "auto";
  std::string linear_cross_entropy = "auto";
  /// True: the products of weight gradients add to the gradients themselves. False: they are stored
  /// in the dtype of the model, and a pass of its own adds them.
  bool products_add = true;
};

/// "katt::rope" for the type katt::rope::ForwardArgs: the namespace of an operator's arguments,
/// which the compiler spells out as "… [with Args = katt::rope::ForwardArgs]".
template <class Args>
[[nodiscard]] std::string operator_of() {
  const std::string_view function = __PRETTY_FUNCTION__;
  const std::size_t first = function.find("katt::", function.find("Args"));
  const std::string_view type = function.substr(first, function.find_first_of(";]", first) - first);
  return std::string(type.substr(0, type.rfind("::")));
}

/// Work of C = αAB + βC, or of a gated product.
[[nodiscard]] inline CallWork work_of_product(const linear::GemmArgs& args) {
  const auto m = static_cast<double>(args.m());
  const auto n = static_cast<double>(args.n());
  const auto k = static_cast<double>(args.k());
  const auto size = [](Dtype dtype) { return static_cast<double>(size_of(dtype)); };
  const double factors = args.is_gated() ? 2 : 1;
  return {.flops = factors * 2 * m * n * k,
          .bytes = size(args.a.dtype) * m * k + factors * size(args.b.dtype) * k * n +
                   size(args.c.dtype) * m * n * (args.beta != 0 ? 2 : 1)};
}

/// The source of a model's activations and workspaces.
template <class Exec>
using Pool = memory::MemoryPool<typename Exec::memory_space>;

/// Runs operators on an execution space with one workspace from a pool, which grows to the largest
/// need of one of them. Each call is a region of Kokkos' profiling interface, "katt::rope". A dry
/// runner launches nothing and only finds that size. It knows the groups of ranks that compute the
/// model together.
template <class Exec>
class Runner {
 public:
  explicit Runner(Exec exec, bool dry = false, Pool<Exec> pool = {}, ranks::Groups groups = {})
      : exec_(std::move(exec)), dry_(dry), pool_(std::move(pool)), groups_(std::move(groups)) {}

  [[nodiscard]] const Exec& exec() const { return exec_; }
  /// Further operators run on this instance, in the same workspace.
  void use(Exec exec) { exec_ = std::move(exec); }
  [[nodiscard]] const ranks::Groups& groups() const { return groups_; }
  [[nodiscard]] bool is_dry() const { return dry_; }
  /// True, the default: gradients of weights are added to the old values. False: they replace them,
  /// so the first pass of a step needs no zeros.
  [[nodiscard]] bool adds_gradients() const { return adds_gradients_; }
  void set_adds_gradients(bool adds) { adds_gradients_ = adds; }
  /// Largest workspace requested so far.
  [[nodiscard]] std::size_t workspace_bytes() const { return needed_; }
  /// Allocates the workspace at once. Throws memory::LimitError.
  void reserve(std::size_t bytes) {
    needed_ = std::max(needed_, bytes);
    if (dry_ || memory_.size() >= needed_) return;
    memory_ = {};  // before the larger one, so that they never live together
    memory_ = pool_.allocate(exec_, needed_);
  }
  /// Makes the system clear the pages of the workspace, before a timed region (memory/touch.hpp).
  void touch() const { memory::touch(exec_, memory_.data(), memory_.size()); }

  /// Runs a variant of a table. Throws InputError with the reason when it cannot run here.
  template <class Args>
  void operator()(const VariantTable<Exec, Args>& table, const Args& args,
                  const std::string& variant) {
    check(args);  // the operator's own
    const auto call = table.call(exec_, args, {.variant = variant});
    if (!call.status().is_ok()) {
      throw InputError("variant " + call.variant().name + ": " + call.status().reason());
    }
    reserve(call.workspace_bytes());
    if (dry_) return;
    static const std::string name = operator_of<Args>();
    observe_call(name, [&] { return work_of(args); });
    const Kokkos::Profiling::ScopedRegion region(name);
    call.launch(memory_.workspace());
  }

  /// Sums the parts that the ranks of the tensor parallel group have computed. Does nothing with
  /// one rank.
  template <int Rank>
  void sum_over_tensor_ranks(const TensorRef<Rank>& partial) {
    if (dry_ || groups_.place.layout.tensor == 1) return;
    const Kokkos::Profiling::ScopedRegion region("katt::ranks::all_reduce");
    groups_.tensor.all_reduce(exec_, partial).wait();
  }

  /// all (ranks · rows, columns) ← the rows of every rank of the tensor parallel group; `own` may be
  /// its own place in `all`.
  void gather_from_tensor_ranks(const TensorRef<2>& own, const TensorRef<2>& all) {
    if (dry_) return;
    const Kokkos::Profiling::ScopedRegion region("katt::ranks::all_gather");
    groups_.tensor.all_gather(exec_, own, all).wait();
  }

  /// own ← this rank's rows of the sum over the tensor parallel group of `all` (ranks · rows, columns).
  void scatter_sum_to_tensor_ranks(const TensorRef<2>& all, const TensorRef<2>& own) {
    if (dry_) return;
    const Kokkos::Profiling::ScopedRegion region("katt::ranks::reduce_scatter");
    groups_.tensor.reduce_scatter(exec_, all, own).wait();
  }

  /// A dense product that no operator computes: one that adds to f32 gradients, or a gated one.
  void gemm(const linear::GemmArgs& args, const char* label) {
    reserve(linear::gemm_workspace_bytes(exec_, args));
    if (dry_) return;
    observe_call("katt::linear", [&] { return work_of_product(args); });
    const Kokkos::Profiling::ScopedRegion region("katt::linear");
    linear::gemm(exec_, args, memory_.workspace(), label);
  }

 private:
  Exec exec_;
  bool dry_;
  bool adds_gradients_ = true;
  std::size_t needed_ = 0;
  Pool<Exec> pool_;
  ranks::Groups groups_;
  memory::PoolBlock memory_;
};

}  // namespace katt::nn
