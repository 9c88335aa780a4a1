#pragma once

#include <string>

#include "core/backend.hpp"
#include "core/dtype.hpp"

namespace katt::bench {

/// The peak that bounds matrix products of a dtype here: that of the matrix unit which takes it,
/// "amx_bf16" or "avx512_bf16", on a GPU "mma_bf16" in 16 bits, else "fma_f32". For Work::compute_ceiling.
[[nodiscard]] std::string matrix_ceiling(Backend backend, Dtype dtype);

}  // namespace katt::bench
