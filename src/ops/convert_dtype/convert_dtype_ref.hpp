#pragma once

#include "core/dtype.hpp"

namespace katt::convert_dtype {

/// value rounded to the dtype by the definition, in f64 arithmetic: to the nearest multiple of the
/// spacing at its magnitude, ties to even; infinity from half a spacing beyond the largest number
/// on. Shares no code with the conversions.
[[nodiscard]] double reference_round(Dtype dtype, double value);

}  // namespace katt::convert_dtype
