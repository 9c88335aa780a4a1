#include "ops/rmsnorm/schema.hpp"

namespace katt::rmsnorm {

namespace {

/// A row without elements has no mean. Throws InputError.
void check_rows(const auto& args) {
  if (args.hidden() <= 0) {
    throw InputError("rmsnorm: hidden " + std::to_string(args.hidden()) + ": expected at least 1");
  }
}

}  // namespace

void check(const ForwardArgs& args) {
  check_rows(args);
  op::check<forward_schema>(args);
  if (args.out.extent[1] <= 0 && args.out_q == nullptr && args.tokens() > 0) {
    throw InputError("rmsnorm: out: missing, expected it or out_q");
  }
}
void check(const BackwardArgs& args) {
  check_rows(args);
  op::check<backward_schema>(args);
}

double forward_flops(const ForwardArgs& args) {
  // square and sum 2, two products 2; addition 1; absmax and product 2
  const int each = 4 + (args.adds() ? 1 : 0) + (args.out_q != nullptr ? 2 : 0);
  return each * static_cast<double>(args.x.size());
}

double backward_flops(const BackwardArgs& args) {
  // g 1, two sums 4, x̂ 1, dx 3, dweight 2; addition 1
  return (11 + (args.adds() ? 1 : 0)) * static_cast<double>(args.x.size());
}

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::rmsnorm
