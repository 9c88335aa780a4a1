#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "core/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/reference.hpp"

/// The score rules of users that sweeps know by name, values of the axis score_rule; see own_rule.hpp.
namespace katt::attention {

/// The variants of an execution space with a rule for so many query heads.
template <class Exec>
struct RuleVariants {
  std::function<VariantTable<Exec, ForwardArgs>(std::int64_t heads)> forward{};
  std::function<VariantTable<Exec, BackwardArgs>(std::int64_t heads)> backward{};
};

struct NamedRule : RuleVariants<Host>
#if defined(KATT_HAS_CUDA)
    ,
                   RuleVariants<Kokkos::Cuda>
#endif
{
  std::string name{};
  std::string description{};
  std::function<ExactRule(std::int64_t heads)> exact{};  ///< for the reference
};

inline std::vector<NamedRule>& named_rules() {
  static std::vector<NamedRule> rules;
  return rules;
}

/// The rule of that name; nullptr for "none". Throws InputError, which lists the known names.
inline const NamedRule* find_rule(const std::string& name) {
  std::string known = "none";
  if (name == known) return nullptr;
  for (const NamedRule& rule : named_rules()) {
    if (rule.name == name) return &rule;
    known += ", " + rule.name;
  }
  throw InputError("score_rule " + name + ": unknown; expected one of " + known);
}

/// The variants of a pass for a rule, or those without one.
template <class Exec, class Args>
VariantTable<Exec, Args> variants_of(const NamedRule* rule, std::int64_t heads) {
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    if (rule == nullptr) return forward_variants<Exec>();
    return static_cast<const RuleVariants<Exec>*>(rule)->forward(heads);
  } else {
    if (rule == nullptr) return backward_variants<Exec>();
    return static_cast<const RuleVariants<Exec>*>(rule)->backward(heads);
  }
}

}  // namespace katt::attention
