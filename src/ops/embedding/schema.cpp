#include "ops/embedding/schema.hpp"

namespace katt::embedding {

void check(const ForwardArgs& args) { op::check<forward_schema>(args); }
void check(const BackwardArgs& args) {
  op::check<backward_schema>(args);
  if (args.dout.extent[0] > std::numeric_limits<std::int32_t>::max()) {
    throw InputError("embedding: dout: holds " + std::to_string(args.dout.extent[0]) +
                     " tokens, expected at most 2^31 − 1");
  }
}

double forward_bytes(const ForwardArgs& args) {
  return 2.0 * static_cast<double>(size_of(args.out.dtype)) * static_cast<double>(args.out.size()) +
         8.0 * static_cast<double>(args.out.extent[0]);
}

double backward_bytes(const BackwardArgs& args) {
  return static_cast<double>(size_of(args.dout.dtype)) *
             static_cast<double>(args.dout.size() + args.dweight.size()) +
         8.0 * static_cast<double>(args.dout.extent[0]);
}

}  // namespace katt::embedding
