#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "tile/vec.hpp"

/// Streaming stores: written past the caches, so that a line is not first read from memory. They
/// pay for outputs larger than the caches, and cost where the next kernel would have found its
/// input there.
namespace katt::tile {

/// Whether the vectors of an execution space have streaming stores.
template <class Exec>
#if defined(KOKKOS_ARCH_AVX512XEON)
inline constexpr bool can_stream_v = is_host_v<Exec>;
#else
inline constexpr bool can_stream_v = false;
#endif

/// Whether a row may be written with streaming stores of whole vectors.
KOKKOS_FORCEINLINE_FUNCTION bool is_streamable(const void* row) {
  return reinterpret_cast<std::uintptr_t>(row) % 64 == 0;
}

/// store(), past the caches where Stream; `target` is then aligned to the size of the written
/// vector.
template <bool Stream, class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_to(T* target, const Vec& value) {
  if constexpr (!Stream) {
    store(target, value);
  } else {
#if defined(KOKKOS_ARCH_AVX512XEON)
    if constexpr (std::is_same_v<T, float>) {
      _mm512_stream_ps(target, static_cast<__m512>(value));
    } else {
      alignas(32) T narrow[lanes_v<Kokkos::Serial>];
      store(narrow, value);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(narrow)));
    }
#endif
  }
}

/// Orders the streaming stores of this thread before its later stores.
KOKKOS_FORCEINLINE_FUNCTION void stream_fence() {
#if defined(KOKKOS_ARCH_AVX512XEON)
  KOKKOS_IF_ON_HOST((_mm_sfence();))
#endif
}

}  // namespace katt::tile
