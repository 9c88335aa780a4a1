#include "ops/linear_cross_entropy/schema.hpp"

#include <string>

namespace katt::linear_cross_entropy {

namespace {

/// Checks what a schema cannot say of both passes. Throws InputError.
template <class Args>
void check_rows(const Args& args) {
  const auto fail = [](const std::string& what) {
    throw InputError("linear_cross_entropy: " + what);
  };
  if (args.vocab() < 1) fail("weight: holds no rows, expected at least 1");
  if (args.kept_logits && args.kept_logits.stride[0] != args.vocab()) {
    fail("kept_logits: has gaps, expected none");
  }
}

double product_flops(const auto& args) {
  return 2.0 * static_cast<double>(args.tokens()) * static_cast<double>(args.hidden_size()) *
         static_cast<double>(args.vocab());
}

double input_bytes(const auto& args) {
  return static_cast<double>(size_of(args.hidden.dtype)) *
         static_cast<double>(args.hidden.size() + args.weight.size());
}

}  // namespace

void check(const ForwardArgs& args) {
  check_rows(args);
  op::check<forward_schema>(args);
  check_tensor<1>("linear_cross_entropy", "loss", args.loss, Dtype::f32, {1});
}
void check(const BackwardArgs& args) {
  check_rows(args);
  BackwardArgs finite = args;
  finite.dloss = 1.0F;  // it may be infinite or NaN, as of a loss scale that overflows
  op::check<backward_schema>(finite);
}

double forward_flops(const ForwardArgs& args) { return product_flops(args); }
double backward_flops(const BackwardArgs& args) { return 2.0 * product_flops(args); }
double forward_bytes(const ForwardArgs& args) {
  return input_bytes(args) + 16.0 * static_cast<double>(args.tokens());
}
double backward_bytes(const BackwardArgs& args) {
  return 2.0 * input_bytes(args) + 16.0 * static_cast<double>(args.tokens());
}

}  // namespace katt::linear_cross_entropy
