#include "ops/attention/rules/program_variants.hpp"

#include "ops/attention/own_rule.hpp"

namespace katt::attention {

VariantTable<Host, ForwardArgs> forward_variants_of(const ProgramRule& rule) {
  return forward_variants_with<Host>(rule);
}
VariantTable<Host, BackwardArgs> backward_variants_of(const ProgramRule& rule) {
  return backward_variants_with<Host>(rule);
}

}  // namespace katt::attention
