#include "ops/swiglu_mlp/schema.hpp"

namespace katt::swiglu_mlp {

namespace {

/// tokens · hidden · intermediate
template <class Args>
double volume(const Args& args) {
  return static_cast<double>(args.tokens()) * static_cast<double>(args.hidden()) *
         static_cast<double>(args.intermediate());
}

/// Throws InputError where an extent is 0.
template <class Args>
void check_extents(const Args& args) {
  if (args.tokens() == 0 || args.hidden() == 0 || args.intermediate() == 0) {
    throw InputError("swiglu_mlp: x: holds shape " + shape_text(args.x.extent) + " and w_gate " +
                     shape_text(args.w_gate.extent) + ", expected no extent of 0");
  }
}

}  // namespace

void check(const ForwardArgs& args) {
  check_extents(args);
  op::check<forward_schema>(args);
}
void check(const BackwardArgs& args) {
  check_extents(args);
  op::check<backward_schema>(args);
}

double forward_flops(const ForwardArgs& args) { return 2.0 * 3.0 * volume(args); }
double backward_flops(const BackwardArgs& args) { return 2.0 * 8.0 * volume(args); }

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::swiglu_mlp
