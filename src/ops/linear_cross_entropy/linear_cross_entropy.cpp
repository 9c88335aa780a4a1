#include "ops/linear_cross_entropy/linear_cross_entropy.hpp"

#include <string>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "ops/linear/gemm/gemm.hpp"
#include "ops/linear_cross_entropy/linear_cross_entropy_passes.hpp"

namespace katt::linear_cross_entropy {

namespace {

[[noreturn]] void fail(const std::string& message) {
  throw InputError("linear_cross_entropy: " + message);
}

void check_shape(const char* name, const ConstTensorRef<2>& tensor, Dtype dtype, std::int64_t rows,
                 std::int64_t columns) {
  if (tensor.extent[0] != rows || tensor.extent[1] != columns || tensor.dtype != dtype) {
    fail(std::string(name) + ": holds (" + std::to_string(tensor.extent[0]) + ", " +
         std::to_string(tensor.extent[1]) + ") " + std::string(name_of(tensor.dtype)) +
         ", expected (" + std::to_string(rows) + ", " + std::to_string(columns) + ") " +
         std::string(name_of(dtype)));
  }
}

/// Parts of both passes.
template <class Args>
void check_inputs(const Args& args) {
  if (args.vocab() < 1) fail("weight: holds no rows, expected at least 1");
  check_shape("weight", args.weight, args.hidden.dtype, args.vocab(), args.hidden_size());
  check_shape("statistics", args.statistics, Dtype::f32, args.tokens(), 2);
  if (args.logits) {
    check_shape("logits", args.logits, args.hidden.dtype, args.tokens(), args.vocab());
  }
  if (args.kept_logits) {
    check_shape("kept_logits", args.kept_logits, Dtype::f32, args.tokens(), args.vocab());
    if (args.kept_logits.stride[0] != args.vocab()) fail("kept_logits: has gaps, expected none");
  }
}

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

/// What multiplies hidden and weight.
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

void check(const ForwardArgs& args) {
  check_inputs(args);
  if (args.loss.extent[0] != 1 || args.loss.dtype != Dtype::f32) {
    fail("loss: holds " + std::to_string(args.loss.extent[0]) + " values of " +
         std::string(name_of(args.loss.dtype)) + ", expected 1 of f32");
  }
}

void check(const BackwardArgs& args) {
  check_inputs(args);
  check_shape("dhidden", args.dhidden, args.hidden.dtype, args.tokens(), args.hidden_size());
  check_shape("dweight", args.dweight, args.hidden.dtype, args.vocab(), args.hidden_size());
}

namespace {

template <class Args>
double product_flops(const Args& args) {
  return 2.0 * static_cast<double>(args.tokens()) * static_cast<double>(args.hidden_size()) *
         static_cast<double>(args.vocab());
}

template <class Args>
double input_bytes(const Args& args) {
  return static_cast<double>(size_of(args.hidden.dtype)) *
         static_cast<double>(args.hidden.size() + args.weight.size());
}

}  // namespace

double forward_flops(const ForwardArgs& args) { return product_flops(args); }
double backward_flops(const BackwardArgs& args) { return 2.0 * product_flops(args); }
double forward_bytes(const ForwardArgs& args) {
  return input_bytes(args) + 16.0 * static_cast<double>(args.tokens());
}
double backward_bytes(const BackwardArgs& args) {
  return 2.0 * input_bytes(args) + 16.0 * static_cast<double>(args.tokens());
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_PASS(backward, BackwardArgs)

}  // namespace katt::linear_cross_entropy
