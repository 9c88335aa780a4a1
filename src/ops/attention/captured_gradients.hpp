#pragma once

#include <cstddef>

#include "core/execution.hpp"
#include "op/variants.hpp"
#include "ops/attention/backward.hpp"
#include "ops/attention/rules/program_variants.hpp"

/// Gradients of the tensors that a rule captures: a pass over the scores after the backward pass.
///
///   for every tile of query rows, for every live tile of its keys:
///     S = Q·Kᵀ, dP = dO·Vᵀ;  P = e^(rule(S) − lse),  d = P ∘ (dP − Δ + dlse)
///     the program adds d · ∂ rule(S) / ∂ element to the elements' gradients
///
/// No buffer grows with seq_q · seq_kv. Tiles form parts, whose number depends on the shapes and the
/// program alone; a part goes over its tiles in order. Large tensors are added to in place, by parts
/// that share no element: those of different batch entries, heads or queries, where these are indices
/// of all gradients. For others each part has a copy, and copies are summed in order. So two runs
/// give the same bits, for any number of threads.
namespace katt::attention::impl {

[[nodiscard]] std::size_t captured_workspace_bytes(const Host& exec, const BackwardArgs& args,
                                                   const CapturedGradients& captured);

void run_captured_gradients(const Host& exec, const BackwardArgs& args, const ProgramRule& rule,
                            const CapturedGradients& captured, Workspace workspace);

}  // namespace katt::attention::impl
