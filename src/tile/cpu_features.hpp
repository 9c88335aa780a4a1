#pragma once

#include <string>

namespace katt {

/// Matrix and low-precision units of this CPU that this process may use. The CPU (CPUID) answers
/// and, for the AMX tiles, the kernel, which grants a process their large state on request.
struct CpuFeatures {
  bool amx_bf16 = false;     ///< TDPBF16PS: bf16 products, f32 sums
  bool amx_int8 = false;     ///< TDPBSSD: int8 products, int32 sums
  bool avx512_bf16 = false;  ///< VDPBF16PS: pairs of bf16 products, f32 sums
  /// As many VDPBF16PS a cycle as FMAs of f32, as on AMD's cores: twice the products. Intel's cores
  /// begin one in two cycles, half the products of FMA (measured: docs/performance.md).
  bool fast_avx512_bf16 = false;
  bool avx512_fp16 = false;  ///< arithmetic on 32 f16 lanes
  std::string amx_refusal;   ///< the reason why amx_bf16 is false; empty when it is true
};

/// The first call detects them and requests the tile state from the kernel.
[[nodiscard]] const CpuFeatures& cpu_features();

}  // namespace katt
