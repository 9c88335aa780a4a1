#include "ops/attention/attention.hpp"

#include <bit>
#include <cmath>

#include "ops/attention/check.hpp"
#include "ops/attention/engines.hpp"

namespace katt::attention {

template <class Exec>
VariantTable<Exec, ForwardArgs>& forward_variants() {
  static auto table = impl::forward_engines<Exec>(NoRule{});
  return table;
}

void check(const ForwardArgs& args) {
  impl::check_inputs(args);
  impl::check_output(args);
}

std::vector<float> alibi_slopes(std::int64_t heads) {
  // The slopes of the largest power of two up to `heads`; then every other slope of twice as many
  // heads.
  const auto whole = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < heads; ++h) {
    const double exponent =
        h < whole ? -8.0 * static_cast<double>(h + 1) / static_cast<double>(whole)
                  : -4.0 * static_cast<double>(2 * (h - whole) + 1) / static_cast<double>(whole);
    slopes.push_back(static_cast<float>(std::exp2(exponent)));
  }
  return slopes;
}

double forward_flops(const ForwardArgs& args) {
  return 4.0 * static_cast<double>(args.head_dim()) * static_cast<double>(args.heads()) *
         impl::visible_pairs(args);
}

double forward_bytes(const ForwardArgs& args) {
  const auto element = static_cast<double>(size_of(args.q.dtype));
  const auto bias = args.mask.bias ? static_cast<double>(args.mask.bias.size()) : 0.0;
  const auto lse = args.lse ? static_cast<double>(args.lse.size()) : 0.0;
  return element * (2.0 * static_cast<double>(args.q.size()) +
                    2.0 * static_cast<double>(args.k.size()) + bias) +
         4.0 * lse;
}

KATT_DEFINE_PASS(forward, ForwardArgs)
KATT_DEFINE_WORKSPACE_BYTES(forward, ForwardArgs)

}  // namespace katt::attention
