#pragma once

#include <string>

namespace katt {

/// Matrix and low-precision units of this CPU that this process may use. Asked of the CPU (CPUID)
/// and, for the AMX tiles, of the kernel, which grants a process their large state on request.
struct CpuFeatures {
  bool amx_bf16 = false;     ///< TDPBF16PS: bf16 products, f32 sums
  bool amx_int8 = false;     ///< TDPBSSD: int8 products, int32 sums
  bool avx512_bf16 = false;  ///< VDPBF16PS: pairs of bf16 products, f32 sums
  /// As many VDPBF16PS a cycle as FMAs of f32, as on AMD's cores: twice the products. Intel's cores
  /// begin one in two cycles, half the products of FMA (measured: docs/performance.md).
  bool fast_avx512_bf16 = false;
  bool avx512_fp16 = false;  ///< arithmetic on 32 f16 lanes
  std::string amx_refusal;   ///< why amx_bf16 is false; empty where it is true
};

/// Detected at the first call, which asks the kernel for the tile state.
[[nodiscard]] const CpuFeatures& cpu_features();

}  // namespace katt
