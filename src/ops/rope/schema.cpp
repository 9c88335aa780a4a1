#include "ops/rope/schema.hpp"

namespace katt::rope {

namespace {

/// head_dim, and the cache, which is dense. Throws InputError.
void check_cache(const ConstTensorRef<2>& cache, std::int64_t head_dim) {
  const auto fail = [](const std::string& message) { throw InputError("rope: " + message); };
  if (head_dim <= 0 || head_dim > max_head_dim || head_dim % 2 != 0) {
    fail("head_dim " + std::to_string(head_dim) + ": expected an even number up to " +
         std::to_string(max_head_dim));
  }
  if (cache.dtype != Dtype::f32 || cache.extent[1] != head_dim || cache.stride[0] != head_dim) {
    fail("cache: holds shape " + shape_text(cache.extent) + " of " +
         std::string(name_of(cache.dtype)) + ", expected dense (rows, " + std::to_string(head_dim) +
         ") of f32");
  }
}

double elements(const ForwardArgs& args) {
  return static_cast<double>(args.x.size()) + static_cast<double>(args.x2.size());
}

/// The backward pass turns as many pairs as the forward pass.
ForwardArgs turned(const BackwardArgs& args) {
  return {.x = args.dout,
          .out = args.dx,
          .x2 = args.dout2,
          .out2 = args.dx2,
          .cache = args.cache,
          .positions = args.positions};
}

}  // namespace

void check(const ForwardArgs& args) {
  check_cache(args.cache, args.head_dim());
  op::check<forward_schema>(args);
}
void check(const BackwardArgs& args) {
  check_cache(args.cache, args.dout.extent[3]);
  op::check<backward_schema>(args);
}

double forward_flops(const ForwardArgs& args) { return 3.0 * elements(args); }
double backward_flops(const BackwardArgs& args) { return forward_flops(turned(args)); }

double forward_bytes(const ForwardArgs& args, std::int64_t cache_rows) {
  const auto positions = static_cast<double>(args.batch() * args.seq());
  return 2.0 * static_cast<double>(size_of(args.x.dtype)) * elements(args) +
         4.0 * static_cast<double>(cache_rows * args.head_dim()) +
         (args.positions != nullptr ? 8.0 * positions : 0.0);
}

double backward_bytes(const BackwardArgs& args, std::int64_t cache_rows) {
  return forward_bytes(turned(args), cache_rows);
}

}  // namespace katt::rope
