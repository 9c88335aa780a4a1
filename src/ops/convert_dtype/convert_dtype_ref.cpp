#include "ops/convert_dtype/convert_dtype_ref.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace katt::convert_dtype {

double reference_round(Dtype dtype, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  // Bits of the significand with the hidden one, and exponents of the smallest and largest normal
  // number.
  const int digits = dtype == Dtype::f32 ? 24 : dtype == Dtype::f16 ? 11 : 8;
  const int smallest = dtype == Dtype::f16 ? -14 : -126;
  const int largest = dtype == Dtype::f16 ? 15 : 127;
  const int exponent = std::max(std::ilogb(value), smallest);
  const double spacing = std::ldexp(1.0, exponent - digits + 1);
  const double rounded = std::nearbyint(value / spacing) * spacing;
  const double limit = std::ldexp(2.0 - std::ldexp(1.0, 1 - digits), largest);
  if (std::abs(rounded) <= limit) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

}  // namespace katt::convert_dtype
