#include "ops/convert_dtype/schema.hpp"

namespace katt::convert_dtype {

namespace {

/// Memory of a matrix: rows of `width` bytes, `stride` bytes apart.
struct Place {
  std::uintptr_t begin, end;
  std::size_t stride, width;

  template <bool Const>
  explicit Place(const BasicTensorRef<2, Const>& tensor)
      : begin(reinterpret_cast<std::uintptr_t>(tensor.data)),
        stride(static_cast<std::size_t>(tensor.stride[0]) * size_of(tensor.dtype)),
        width(static_cast<std::size_t>(tensor.extent[1]) * size_of(tensor.dtype)) {
    const auto rows = static_cast<std::size_t>(tensor.extent[0]);
    end = rows == 0 || width == 0 ? begin : begin + (rows - 1) * stride + width;
  }
  [[nodiscard]] bool meets(const Place& other) const {
    if (begin >= other.end || other.begin >= end) return false;
    if (stride != other.stride || stride == 0) return true;
    // Columns of one matrix may lie apart, in either order.
    const std::size_t apart = (other.begin % stride + stride - begin % stride) % stride;
    return apart < width || apart + other.width > stride;
  }
};

}  // namespace

void check(const ForwardArgs& args) {
  op::check<forward_schema>(args);
  if (Place(args.x).meets(Place(args.out))) {
    throw InputError("convert: out: shares memory with x, expected memory of its own");
  }
}

double bytes(const ForwardArgs& args) { return op::bytes<forward_schema>(args); }

}  // namespace katt::convert_dtype
