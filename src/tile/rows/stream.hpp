#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/status.hpp"
#include "tile/vec/vec.hpp"

/// Streaming stores bypass the caches, so that a line is not first read from memory. They pay for
/// outputs larger than the caches, and cost time when the next kernel would have found its input in
/// the caches.
namespace katt::tile {

/// True when the vectors of an execution space have streaming stores.
template <class Exec>
#if defined(KATT_VEC_AVX512)
inline constexpr bool can_stream_v = is_host_v<Exec>;
#else
inline constexpr bool can_stream_v = false;
#endif

/// Bytes of an element-wise kernel's output from which streaming stores pay: a multiple of a core's
/// caches.
inline constexpr std::int64_t streaming_bytes = std::int64_t{32} << 20;

/// Bytes of output from which a variant with streaming stores is faster than one without, in cold
/// caches: by the files of results/ from 8 MiB on Zen 4, 16 on Zen 5 and Intel's cores since
/// Sapphire Rapids, 32 on others.
#if defined(__AVX512FP16__)
inline constexpr std::int64_t stream_variant_bytes = std::int64_t{16} << 20;
#else
inline constexpr std::int64_t stream_variant_bytes = std::int64_t{is_zen5  ? 16
                                                                  : is_zen ? 8
                                                                           : 32}
                                                     << 20;
#endif

/// ok, or skipped with the reason: the answer of a variant with streaming stores.
template <class Exec>
Status stream_support() {
  return can_stream_v<Exec> ? Status::ok()
                            : Status::skipped("streaming stores are built for hosts with AVX-512");
}

/// True when streaming stores of whole vectors can write a row.
KOKKOS_FORCEINLINE_FUNCTION bool is_streamable(const void* row) {
  return reinterpret_cast<std::uintptr_t>(row) % 64 == 0;
}

/// store(); with Stream it bypasses the caches, and `target` is aligned to the size of the written
/// vector.
template <bool Stream, class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_to(T* target, const Vec& value) {
  if constexpr (!Stream) {
    store(target, value);
  } else {
#if defined(KATT_VEC_AVX512)
    const auto wide = static_cast<__m512>(value);
    if constexpr (std::is_same_v<T, float>) {
      _mm512_stream_ps(target, wide);
    } else {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target), avx512::narrow<T>(wide));
    }
#endif
  }
}

#if defined(KATT_VEC_AVX512)
namespace impl {

/// Writes 64 bytes; with Stream it bypasses the caches, and `target` is is_streamable().
template <bool Stream>
KOKKOS_FORCEINLINE_FUNCTION void store_line(void* target, __m512i line) {
  if constexpr (Stream) {
    _mm512_stream_si512(static_cast<__m512i*>(target), line);
  } else {
    _mm512_storeu_si512(target, line);
  }
}

}  // namespace impl
#endif

/// store_to() of two vectors to contiguous elements; a streamed target is aligned to the number of
/// written bytes. In 16 bits they make a cache line, which is written in one piece.
template <bool Stream, class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_two_to(T* target, const Vec& first, const Vec& second) {
#if defined(KATT_VEC_AVX512)
  if constexpr (sizeof(T) == 2 && !std::is_same_v<Vec, float>) {
    const __m512i line =
        _mm512_inserti64x4(_mm512_castsi256_si512(avx512::narrow<T>(static_cast<__m512>(first))),
                           avx512::narrow<T>(static_cast<__m512>(second)), 1);
    return impl::store_line<Stream>(target, line);
  }
#endif
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  store_to<Stream>(target, first);
  store_to<Stream>(target + lanes, second);
}

/// Copies the elements of two vectors, bypassing the caches; `target` is_streamable().
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void stream_copy_two(const T* source, T* target) {
#if defined(KATT_VEC_AVX512)
  constexpr int line = 64 / sizeof(T);
  constexpr int elements = 2 * sizeof(Vec) / sizeof(float);
  for (int i = 0; i < elements; i += line) {
    impl::store_line<true>(target + i, _mm512_loadu_si512(source + i));
  }
#else
  (void)source;
  (void)target;
#endif
}

/// Orders the streaming stores of this thread before its later stores.
KOKKOS_FORCEINLINE_FUNCTION void stream_fence() {
#if defined(KATT_VEC_AVX512)
  KOKKOS_IF_ON_HOST((_mm_sfence();))
#endif
}

}  // namespace katt::tile
