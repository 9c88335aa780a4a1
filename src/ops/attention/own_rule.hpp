#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/attention/bf16_panels/scores.hpp"
#include "ops/attention/decode/kernel.hpp"
#include "ops/attention/engines.hpp"
#include "ops/attention/naive/backward_kernel.hpp"
#include "ops/attention/naive/forward_kernel.hpp"
#include "ops/attention/portable/backward_kernel.hpp"
#include "ops/attention/portable/forward_kernel.hpp"
#include "ops/attention/portable/mask_gradient_kernel.hpp"
#include "ops/attention/rules/score_rules.hpp"
#if defined(KATT_HAS_CUDA)
#include "ops/attention/tensor_cores/mma_backward_cuda.hpp"
#include "ops/attention/tensor_cores/mma_cuda.hpp"
#include "ops/attention/tensor_cores/wgmma_backward_cuda.hpp"
#include "ops/attention/tensor_cores/wgmma_cuda.hpp"
#endif

/// A user's own score rule, on every engine, in both passes: a step of a score between ScoreArgs
/// and the bias. A rule is a struct that can be copied to a device:
///
///   struct Rule {
///     static constexpr int parameters = 1;  // numbers that it has for every head, or 0
///     KOKKOS_FUNCTION float parameter(int n, std::int64_t batch, std::int64_t head) const;
///     // The new score; `slope` becomes d (new score) / d score. V is float, double in the
///     // reference, or a vector of floats. A rule that takes float alone is called lane by lane.
///     template <class V>
///     KOKKOS_FUNCTION V operator()(const V& score, const ScorePlace<V>& at, V& slope) const;
///   };
///
/// This header holds all kernels: a program that includes it compiles those of its rule.
namespace katt::attention {

/// The variants of a pass with a rule, as forward_variants() and backward_variants() without one.
template <class Exec, class Rule>
VariantTable<Exec, ForwardArgs> forward_variants_with(const Rule& rule) {
  return impl::forward_engines<Exec>(rule);
}
/// The same for the backward pass.
template <class Exec, class Rule>
VariantTable<Exec, BackwardArgs> backward_variants_with(const Rule& rule) {
  return impl::backward_engines<Exec>(rule);
}

/// Adds a rule to what sweeps accept for the axis score_rule; their reference applies it in
/// float64, or in float if the rule takes only that. make.template operator()<Exec>(heads) is the
/// rule for an execution space and this many query heads. Throws InputError when the name exists
/// already.
template <class Make>
void add_score_rule(std::string name, std::string description, Make make) {
  for (const NamedRule& known : named_rules()) {
    if (known.name == name) throw InputError("score_rule " + name + ": the name is taken");
  }
  NamedRule named;
  const auto add = [&]<class Exec>() {
    auto& variants = static_cast<RuleVariants<Exec>&>(named);
    variants.forward = RuleTables<Exec, ForwardArgs>([make](const RuleExtents& of) {
      return forward_variants_with<Exec>(make.template operator()<Exec>(of.heads));
    });
    variants.backward = RuleTables<Exec, BackwardArgs>([make](const RuleExtents& of) {
      return backward_variants_with<Exec>(make.template operator()<Exec>(of.heads));
    });
  };
  add.template operator()<Host>();
#if defined(KATT_HAS_CUDA)
  add.template operator()<Kokkos::Cuda>();
#endif
  named.exact = [make](std::int64_t heads) -> ExactRule {
    const auto rule = make.template operator()<Host>(heads);
    return [rule](double score, const QueryIndex& at, double position, double key, double& slope) {
      using Rule = std::decay_t<decltype(rule)>;
      using Real = std::conditional_t<
          std::is_invocable_v<const Rule&, const double&, const ScorePlace<double>&, double&>,
          double, float>;
      Real parameters[Rule::parameters > 0 ? Rule::parameters : 1] = {};
      for (int n = 0; n < Rule::parameters; ++n)
        parameters[n] = rule.parameter(n, at.batch, at.head);
      Real own = 1;
      const Real result = rule(
          static_cast<Real>(score),
          ScorePlace<Real>{static_cast<Real>(position), static_cast<Real>(key), parameters}, own);
      slope = own;
      return static_cast<double>(result);
    };
  };
  named.name = std::move(name);
  named.description = std::move(description);
  named_rules().push_back(std::move(named));
}

}  // namespace katt::attention
