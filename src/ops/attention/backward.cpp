#include "ops/attention/backward.hpp"

#include "ops/attention/check.hpp"
#include "ops/attention/engines.hpp"

namespace katt::attention {

template <class Exec>
VariantTable<Exec, BackwardArgs>& backward_variants() {
  static auto table = impl::backward_engines<Exec>(NoRule{});
  return table;
}

void check(const BackwardArgs& args) {
  impl::check_inputs(args);
  const Dtype dtype = args.q.dtype;
  check_tensor<4>("attention", "out", args.out, dtype, args.q.extent);
  check_tensor<4>("attention", "dout", args.dout, dtype, args.q.extent);
  check_tensor<3>("attention", "lse", args.lse, Dtype::f32,
                  {args.batch(), args.heads(), args.seq_q()});
  check_tensor<4>("attention", "dq", args.dq, dtype, args.q.extent);
  check_tensor<4>("attention", "dk", args.dk, dtype, args.k.extent);
  check_tensor<4>("attention", "dv", args.dv, dtype, args.k.extent);
}

double backward_flops(const BackwardArgs& args) {
  return 10.0 * static_cast<double>(args.head_dim()) * static_cast<double>(args.heads()) *
         impl::visible_pairs(args);
}

double backward_bytes(const BackwardArgs& args) {
  const auto element = static_cast<double>(size_of(args.q.dtype));
  const auto bias = args.mask.bias ? static_cast<double>(args.mask.bias.size()) : 0.0;
  const auto rows = static_cast<double>(args.batch() * args.heads() * args.seq_q());
  return element * (4.0 * static_cast<double>(args.q.size()) +
                    4.0 * static_cast<double>(args.k.size()) + bias) +
         4.0 * rows;
}

KATT_DEFINE_PASS(backward, BackwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(backward, BackwardArgs)

}  // namespace katt::attention
