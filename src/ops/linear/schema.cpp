#include "ops/linear/schema.hpp"

namespace katt::linear {

namespace {

double product_of(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) * static_cast<double>(b);
}

}  // namespace

void check(const ForwardArgs& args) { op::check<forward_schema>(args); }
void check(const BackwardArgs& args) { op::check<backward_schema>(args); }

double forward_flops(const ForwardArgs& args) {
  return 2.0 * product_of(args.tokens(), args.in_features()) *
         static_cast<double>(args.out_features());
}

double backward_flops(const BackwardArgs& args) {
  const int products = (args.dx.size() > 0 ? 1 : 0) + (args.dweight.size() > 0 ? 1 : 0);
  return 2.0 * products * product_of(args.tokens(), args.in_features()) *
         static_cast<double>(args.out_features());
}

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::linear
