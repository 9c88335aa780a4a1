#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/execution.hpp"
#include "op/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/reference/float64.hpp"

/// The score rules of users that sweeps know by name, values of the axis score_rule; see own_rule.hpp.
namespace katt::attention {

/// Extents of a call that a rule may be made for.
struct RuleExtents {
  std::int64_t batch = 1, heads = 1, seq_q = 1, seq_kv = 1;

  friend auto operator<=>(const RuleExtents&, const RuleExtents&) = default;
};

/// The variants of an execution space with a rule for some extents, made once. They may hold memory of
/// Kokkos, so they go with it.
template <class Exec, class Args>
class RuleTables {
 public:
  using Table = VariantTable<Exec, Args>;

  RuleTables() = default;
  explicit RuleTables(std::function<Table(const RuleExtents&)> make) : make_(std::move(make)) {}

  const Table& of(const RuleExtents& extents) const {
    if (made_->empty()) Kokkos::push_finalize_hook([made = made_] { made->clear(); });
    auto found = made_->find(extents);
    if (found == made_->end()) found = made_->emplace(extents, make_(extents)).first;
    return found->second;
  }

 private:
  std::function<Table(const RuleExtents&)> make_;
  std::shared_ptr<std::map<RuleExtents, Table>> made_ =
      std::make_shared<std::map<RuleExtents, Table>>();
};

template <class Exec>
struct RuleVariants {
  RuleTables<Exec, ForwardArgs> forward{};
  RuleTables<Exec, BackwardArgs> backward{};
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

/// The variants of a pass for a rule, or those without one.
template <class Exec, class Args>
const VariantTable<Exec, Args>& variants_of(const NamedRule* rule, const RuleExtents& extents) {
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    if (rule == nullptr) return forward_variants<Exec>();
    return static_cast<const RuleVariants<Exec>*>(rule)->forward.of(extents);
  } else {
    if (rule == nullptr) return backward_variants<Exec>();
    return static_cast<const RuleVariants<Exec>*>(rule)->backward.of(extents);
  }
}

}  // namespace katt::attention
