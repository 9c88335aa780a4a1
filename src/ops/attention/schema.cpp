#include "ops/attention/schema.hpp"

#include <bit>
#include <cmath>

#include "ops/attention/check.hpp"

namespace katt::attention {

void check(const ForwardArgs& args) {
  impl::check_heads(args);
  op::check<forward_schema>(args);
  impl::check_mask(args);
}
void check(const BackwardArgs& args) {
  impl::check_heads(args);
  op::check<backward_schema>(args);
  impl::check_mask(args);
  if (args.dmask && !args.mask.bias) {
    throw InputError("attention: dmask: given without a mask, expected a mask beside it");
  }
}

void check_values(const ForwardArgs& args) {
  impl::check_lengths(args.mask.kv_len, args.batch(), args.seq_kv());
}
void check_values(const BackwardArgs& args) {
  impl::check_lengths(args.mask.kv_len, args.batch(), args.seq_kv());
}

std::vector<float> alibi_slopes(std::int64_t heads) {
  // The slopes of the largest power of two up to `heads`; then every other slope of twice as many.
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

double forward_bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }
double backward_bytes(const BackwardArgs& args) { return op::bytes<backward_schema>(args); }

}  // namespace katt::attention
