#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"

#include <string>

#include "core/execution.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_passes.hpp"

namespace katt::linear_cross_entropy {

namespace {

bool has_logits(const BackwardArgs& args) { return args.logits.size() > 0; }

Status needs_logits(const BackwardArgs& args) {
  if (has_logits(args)) return Status::ok();
  return Status::skipped(
      "variant naive reads the logits of its forward pass, which the arguments lack");
}

/// Stored logits save naive one of three products, as kept ones save "fused" one: then naive, the first of
/// equals, is the faster one.
int fused_backward_rank(const BackwardArgs& args) {
  return has_logits(args) && args.kept_logits.size() == 0 ? 0 : 1;
}

/// Name of the unit that multiplies hidden and weight.
template <class Exec, class Args>
std::string engine(const Exec& /*exec*/, const Args& args) {
  return linear::fastest_engine<Exec>({.a = args.hidden,
                                       .b = args.weight,
                                       .c = {nullptr, Dtype::f32, {args.tokens(), args.vocab()}},
                                       .trans_b = true})
      .unit;
}

}  // namespace

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static VariantTable<Exec, ForwardArgs> table{
      {.name = "naive",
       .description = "logits stored by a GEMM, then cross-entropy",
       .workspace_bytes = impl::naive_forward_bytes<Exec>,
       .run = impl::naive_forward<Exec>,
       .engine = engine<Exec, ForwardArgs>},
      {.name = "fused",
       .description = "blocks of the vocabulary, online log-sum-exp, no stored logits",
       .rank = 1,
       .workspace_bytes = impl::fused_forward_bytes<Exec>,
       .run = impl::fused_forward<Exec>,
       .engine = engine<Exec, ForwardArgs>}};
  return table;
}

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static VariantTable<Exec, BackwardArgs> table{
      {.name = "naive",
       .description = "from stored logits: their gradients stored, then two GEMMs",
       .supports = needs_logits,
       .workspace_bytes = impl::naive_backward_bytes<Exec>,
       .run = impl::naive_backward<Exec>,
       .engine = engine<Exec, BackwardArgs>},
      {.name = "fused",
       .description = "blocks of logits, kept or computed again, two GEMMs a block",
       .rank = fused_backward_rank,
       .workspace_bytes = impl::fused_backward_bytes<Exec>,
       .run = impl::fused_backward<Exec>,
       .engine = engine<Exec, BackwardArgs>}};
  return table;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::linear_cross_entropy
