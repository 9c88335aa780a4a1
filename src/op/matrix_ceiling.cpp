#include "op/matrix_ceiling.hpp"

#include "tile/bf16/bf16_units.hpp"

namespace katt::bench {

std::string matrix_ceiling(Backend backend, Dtype dtype) {
  if (backend == Backend::cuda) return dtype == Dtype::f32 ? "fma_f32" : "mma_bf16";
  if (dtype != Dtype::bf16) return "fma_f32";
  switch (tile::bf16_panels::unit()) {
    case tile::bf16_panels::UnitName::amx: return "amx_bf16";
    case tile::bf16_panels::UnitName::dot: return "avx512_bf16";
    default: return "fma_f32";
  }
}

}  // namespace katt::bench
