#include "ops/rmsnorm_linear/schema.hpp"

namespace katt::rmsnorm_linear {

namespace {

/// FLOPs of a product.
template <class Args>
double product_flops(const Args& args) {
  return 2.0 * static_cast<double>(args.tokens()) * static_cast<double>(args.hidden()) *
         static_cast<double>(args.out_features());
}

/// A row without elements has no mean. Throws InputError.
void check_rows(const auto& args) {
  if (args.hidden() <= 0) {
    throw InputError("rmsnorm_linear: hidden " + std::to_string(args.hidden()) +
                     ": expected at least 1");
  }
}

}  // namespace

void check(const ForwardArgs& args) {
  check_rows(args);
  op::check<forward_schema>(args);
}
void check(const BackwardArgs& args) {
  check_rows(args);
  op::check<backward_schema>(args);
}

double forward_flops(const ForwardArgs& args) { return product_flops(args); }
double backward_flops(const BackwardArgs& args) { return 2.0 * product_flops(args); }

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::rmsnorm_linear
