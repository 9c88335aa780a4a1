#include "ops/ternary_linear/schema.hpp"

#include <string>

namespace katt::ternary_linear {

namespace {

/// Checks what a schema cannot say of the weight. Throws InputError.
template <class Args>
void check_weight(const Args& args) {
  const auto fail = [](const std::string& what) { throw InputError("ternary_linear: " + what); };
  const std::int64_t in = args.in_features();
  if (in < 1 || in > max_in_features) {
    fail("in_features " + std::to_string(in) + ": expected 1 to " +
         std::to_string(max_in_features));
  }
  const std::array packed{args.packed.out_features, args.packed.in_features};
  if (const std::array wanted{args.out_features(), in}; args.packed && packed != wanted) {
    fail("packed: holds " + shape_text(packed) + ", expected " + shape_text(wanted));
  }
}

double volume(const auto& args) {
  return static_cast<double>(args.tokens()) * static_cast<double>(args.in_features()) *
         static_cast<double>(args.out_features());
}

double weight_bytes(const auto& args) {
  return static_cast<double>(
      packed_bytes(PackFormat::five_per_byte, args.out_features(), args.in_features()));
}

}  // namespace

void check(const ForwardArgs& args) {
  check_weight(args);
  op::check<forward_schema>(args);
}

void check(const BackwardArgs& args) {
  check_weight(args);
  BackwardArgs stored = args;
  if (args.adds_dweight) {
    check_tensor<2>("ternary_linear", "dweight", args.dweight, Dtype::f32,
                    {args.out_features(), args.in_features()});
    stored.dweight.dtype = args.x.dtype;
  }
  op::check<backward_schema>(stored);
}

double forward_flops(const ForwardArgs& args) { return 2.0 * volume(args); }
double backward_flops(const BackwardArgs& args) { return 4.0 * volume(args); }

double forward_bytes(const ForwardArgs& args) {
  return weight_bytes(args) + static_cast<double>(size_of(args.x.dtype)) *
                                  static_cast<double>(args.x.size() + args.out.size());
}

double backward_bytes(const BackwardArgs& args) {
  return weight_bytes(args) +
         static_cast<double>(size_of(args.x.dtype)) *
             static_cast<double>(2 * args.x.size() + args.dout.size()) +
         static_cast<double>(size_of(args.dweight.dtype) * (args.adds_dweight ? 2 : 1)) *
             static_cast<double>(args.dweight.size());
}

}  // namespace katt::ternary_linear
