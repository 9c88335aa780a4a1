#include "ops/attention/backward.hpp"

#include "ops/attention/engines.hpp"
#include "ops/attention/work.hpp"

namespace katt::attention {

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static auto table = impl::backward_engines<Exec>(NoRule{});
  return table;
}

double backward_flops(const BackwardArgs& args) {
  return 10.0 * static_cast<double>(args.head_dim()) * static_cast<double>(args.heads()) *
         impl::visible_pairs(args);
}

KATT_DEFINE_PASS(backward, BackwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(backward, BackwardArgs)

}  // namespace katt::attention
