#include "ops/attention/attention.hpp"

#include "ops/attention/engines.hpp"
#include "ops/attention/work.hpp"

namespace katt::attention {

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static auto table = impl::forward_engines<Exec>(NoRule{});
  return table;
}

double forward_flops(const ForwardArgs& args) {
  return 4.0 * static_cast<double>(args.head_dim()) * static_cast<double>(args.heads()) *
         impl::visible_pairs(args);
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(forward, ForwardArgs)

}  // namespace katt::attention
