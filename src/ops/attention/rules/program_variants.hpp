#pragma once

#include <vector>

#include "core/execution.hpp"
#include "op/variants.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/rules/program_rule.hpp"

namespace katt::attention {

/// The gradients of a rule's captured tensors: a program that adds them up, and the dense f32 tensor
/// that each has room in; null where nobody asks for it.
struct CapturedGradients {
  const Program* program = nullptr;  ///< null: there are none
  std::vector<float*> tensors{};
};

/// The variants of both passes on a host with a rule that is a program. Backward, each also computes
/// the gradients of captured tensors, in a pass of its own (captured_gradients.hpp).
[[nodiscard]] VariantTable<Host, ForwardArgs> forward_variants_of(const ProgramRule& rule);
[[nodiscard]] VariantTable<Host, BackwardArgs> backward_variants_of(
    const ProgramRule& rule, const CapturedGradients& captured);

}  // namespace katt::attention
