#include "ops/swiglu_mlp/schema.hpp"

namespace katt::swiglu_mlp {

namespace {

/// tokens · hidden · intermediate
template <class Args>
double volume(const Args& args) {
  return static_cast<double>(args.tokens()) * static_cast<double>(args.hidden()) *
         static_cast<double>(args.intermediate());
}

}  // namespace

void check(const ForwardArgs& args) { op::check<forward_schema>(args); }
void check(const BackwardArgs& args) { op::check<backward_schema>(args); }

double forward_flops(const ForwardArgs& args) { return 2.0 * 3.0 * volume(args); }
double backward_flops(const BackwardArgs& args) { return 2.0 * 8.0 * volume(args); }

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::swiglu_mlp
