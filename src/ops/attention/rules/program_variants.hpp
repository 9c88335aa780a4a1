#pragma once

#include "core/execution.hpp"
#include "op/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/rules/program_rule.hpp"

namespace katt::attention {

/// The variants of both passes on a host with a rule that is a program.
[[nodiscard]] VariantTable<Host, ForwardArgs> forward_variants_of(const ProgramRule& rule);
[[nodiscard]] VariantTable<Host, BackwardArgs> backward_variants_of(const ProgramRule& rule);

}  // namespace katt::attention
