#include "ops/cross_entropy/schema.hpp"

namespace katt::cross_entropy {

namespace {

/// Throws InputError.
void check_classes(std::int64_t vocab) {
  if (vocab < 1) throw InputError("cross_entropy: logits: holds no classes, expected at least 1");
}

}  // namespace

void check(const ForwardArgs& args) {
  check_classes(args.vocab());
  op::check<forward_schema>(args);
  check_tensor<1>("cross_entropy", "loss", args.loss, Dtype::f32, {1});
}
void check(const BackwardArgs& args) {
  check_classes(args.vocab());
  BackwardArgs finite = args;
  finite.dloss = 1.0F;  // it may be infinite or NaN, as of a loss scale that overflows
  op::check<backward_schema>(finite);
}

double forward_flops(const ForwardArgs& args) {
  return 4.0 * static_cast<double>(args.logits.size());
}
double backward_flops(const BackwardArgs& args) {
  return 3.0 * static_cast<double>(args.logits.size());
}

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::cross_entropy
