#include "ops/convert_dtype/schema.hpp"

namespace katt::convert_dtype {

void check(const ForwardArgs& args) { op::check<forward_schema>(args); }

double bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }

}  // namespace katt::convert_dtype
