#include "ops/swiglu/schema.hpp"

namespace katt::swiglu {

void check(const ForwardArgs& args) { op::check<forward_schema>(args); }
void check(const BackwardArgs& args) { op::check<backward_schema>(args); }

double forward_flops(const ForwardArgs& args) {
  return 5.0 * static_cast<double>(args.gate.size());
}
double backward_flops(const BackwardArgs& args) {
  return 11.0 * static_cast<double>(args.gate.size());
}

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::swiglu
