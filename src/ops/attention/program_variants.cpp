#include "ops/attention/rules/program_variants.hpp"

#include <algorithm>
#include <cstddef>

#include "ops/attention/captured_gradients.hpp"
#include "ops/attention/own_rule.hpp"

namespace katt::attention {

VariantTable<Host, ForwardArgs> forward_variants_of(const ProgramRule& rule) {
  return forward_variants_with<Host>(rule);
}

VariantTable<Host, BackwardArgs> backward_variants_of(const ProgramRule& rule,
                                                      const CapturedGradients& captured) {
  const auto plain = backward_variants_with<Host>(rule);
  if (captured.program == nullptr) return plain;
  VariantTable<Host, BackwardArgs> table{};
  for (Variant<Host, BackwardArgs> variant : plain.all()) {
    variant.workspace_bytes = [own = variant.workspace_bytes, captured](const Host& exec,
                                                                        const BackwardArgs& args,
                                                                        const Setting& setting) {
      const std::size_t bytes = own ? own(exec, args, setting) : 0;
      return std::max(bytes, impl::captured_workspace_bytes(exec, args, captured));
    };
    variant.run = [own = variant.run, rule, captured](const Host& exec, const BackwardArgs& args,
                                                      const Setting& setting, Workspace workspace) {
      own(exec, args, setting, workspace);
      impl::run_captured_gradients(exec, args, rule, captured, workspace);
    };
    table.add(variant);
  }
  return table;
}

}  // namespace katt::attention
