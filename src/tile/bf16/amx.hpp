#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tile/cpu_features.hpp"
#include "tile/vec/vec.hpp"

/// The AMX tile unit: eight registers tmm0 … tmm7 of 16 rows × 64 bytes and a product
///
///   C(16 × 16 f32) += A(16 × 32 bf16) · B(32 × 16 bf16)
///
/// where B lies in pairs of rows: row p of the register holds, for every column n, the elements
/// (2p, n) and (2p + 1, n) side by side. (Intel 64 and IA-32 Architectures Software Developer's
/// Manual, volume 1, chapter 18.) Assembler instructions rather than compiler intrinsics: they need
/// no compiler flag, so that any AVX-512 build holds them and cpu_features() decides at run time.
#if defined(KATT_VEC_AVX512) && defined(__x86_64__)
#define KATT_BF16_PANELS
#endif

namespace katt::tile::amx {

/// The reason why kernels on bf16 panels cannot run in this process; empty when they can.
inline const std::string& refusal() {
#if defined(KATT_BF16_PANELS)
  return cpu_features().amx_refusal;
#else
  static const std::string reason = "this build has no AVX-512 vectors to feed AMX tiles with";
  return reason;
#endif
}

#if defined(KATT_BF16_PANELS)

inline constexpr int rows = 16;           ///< rows of a tile register
inline constexpr int row_bytes = 64;      ///< bytes of a row
inline constexpr int depth = 32;          ///< bf16 elements of a row of A
inline constexpr int panel_bytes = 1024;  ///< bytes of a tile register

/// Configures all eight registers at their full size while the object lives on its thread.
class Session {
 public:
  Session() {
    struct alignas(64) Config {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    for (int t = 0; t < 8; ++t) {
      config.bytes[t] = row_bytes;
      config.rows[t] = rows;
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~Session() { asm volatile("tilerelease" ::); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
};

/// Sets register T to zero.
template <int T>
KOKKOS_FORCEINLINE_FUNCTION void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

/// Reads register T from rows `stride` bytes apart.
template <int T>
KOKKOS_FORCEINLINE_FUNCTION void load(const void* source, std::ptrdiff_t stride = row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(source), "r"(stride), "i"(T) : "memory");
}

/// The same with the hint that the data is not used again soon: it bypasses the first-level cache
/// and evicts nothing from it.
template <int T>
KOKKOS_FORCEINLINE_FUNCTION void load_past(const void* source, std::ptrdiff_t stride = row_bytes) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(source), "r"(stride), "i"(T) : "memory");
}

/// Writes register T to rows `stride` bytes apart.
template <int T>
KOKKOS_FORCEINLINE_FUNCTION void store(void* target, std::ptrdiff_t stride = row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(target), "r"(stride), "i"(T) : "memory");
}

/// C += A·B in bf16.
template <int C, int A, int B>
KOKKOS_FORCEINLINE_FUNCTION void product_bf16() {
  asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" ::"i"(B), "i"(A), "i"(C));
}

#endif

}  // namespace katt::tile::amx
