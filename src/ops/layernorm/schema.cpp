#include "ops/layernorm/schema.hpp"

namespace katt::layernorm {

namespace {

/// A row without elements has no mean. Throws InputError.
void check_rows(const auto& args) {
  if (args.x.extent[1] <= 0) throw InputError("layernorm: hidden 0: expected at least 1");
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

double forward_flops(const ForwardArgs& args) { return 8.0 * static_cast<double>(args.x.size()); }
double backward_flops(const BackwardArgs& args) {
  return 16.0 * static_cast<double>(args.x.size());
}

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::layernorm
