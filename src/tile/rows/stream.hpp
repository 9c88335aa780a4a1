#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/dtype.hpp"
#include "core/status.hpp"
#include "tile/vec/vec.hpp"

/// Streaming stores bypass the caches, so that a line is not first read from memory. They pay for
/// outputs larger than the caches, and cost time when the next kernel would have found its input in
/// the caches.
namespace katt::tile {

/// True when the vectors of an execution space have streaming stores.
template <class Exec>
#if defined(KATT_VEC_AVX512) || defined(KATT_VEC_AVX2)
inline constexpr bool can_stream_v = is_host_v<Exec>;
#else
inline constexpr bool can_stream_v = false;
#endif

/// Bytes of an element-wise kernel's output from which streaming stores pay: a multiple of a core's
/// caches.
inline constexpr std::int64_t streaming_bytes = std::int64_t{32} << 20;

/// True when a store can write a whole cache line. AVX2 writes halves, or quarters: where the stores of
/// several outputs alternate, each may reach memory alone, at a quarter of the speed
/// (docs/performance/avx2.md).
#if defined(KATT_VEC_AVX512)
inline constexpr bool stores_whole_lines = true;
#else
inline constexpr bool stores_whole_lines = false;
#endif

/// Bytes of output from which a variant with streaming stores is faster than one without, in cold
/// caches: by the files of results/ from 8 MiB on Zen 4, 16 on Zen 3, Zen 5 and Intel's cores since
/// Sapphire Rapids, 32 on others.
#if defined(__AVX512FP16__)
inline constexpr std::int64_t stream_variant_bytes = std::int64_t{16} << 20;
#else
inline constexpr std::int64_t stream_variant_bytes =
    std::int64_t{!is_zen                          ? 32
                 : is_zen5 || !stores_whole_lines ? 16
                                                  : 8}
    << 20;
#endif

/// The rank of a variant with streaming stores beside one of rank 2 without them: higher where it is
/// faster. `outputs`: rows, or parts of a row, that a thread writes side by side.
constexpr int stream_rank(std::int64_t bytes, Dtype dtype, int outputs) {
  const bool in_lines = stores_whole_lines || dtype == Dtype::f32 || outputs == 1;
  return in_lines && bytes >= stream_variant_bytes ? 3 : 1;
}

/// ok, or skipped with the reason: the answer of a variant with streaming stores.
template <class Exec>
Status stream_support() {
  return can_stream_v<Exec>
             ? Status::ok()
             : Status::skipped("streaming stores are built for hosts with AVX2 or AVX-512");
}

/// True when streaming stores of whole vectors can write a row.
KOKKOS_FORCEINLINE_FUNCTION bool is_streamable(const void* row) {
  return reinterpret_cast<std::uintptr_t>(row) % 64 == 0;
}

#if defined(KATT_VEC_AVX512) || defined(KATT_VEC_AVX2)
namespace impl {

/// Writes a register; with Stream it bypasses the caches, and `target` is aligned to its size.
template <bool Stream>
KOKKOS_FORCEINLINE_FUNCTION void store_bits(void* target, __m128i bits) {
  auto* to = static_cast<__m128i*>(target);
  Stream ? _mm_stream_si128(to, bits) : _mm_storeu_si128(to, bits);
}
template <bool Stream>
KOKKOS_FORCEINLINE_FUNCTION void store_bits(void* target, __m256i bits) {
  auto* to = static_cast<__m256i*>(target);
  Stream ? _mm256_stream_si256(to, bits) : _mm256_storeu_si256(to, bits);
}

#if defined(KATT_VEC_AVX512)
template <bool Stream>
KOKKOS_FORCEINLINE_FUNCTION void store_bits(void* target, __m512i bits) {
  auto* to = static_cast<__m512i*>(target);
  Stream ? _mm512_stream_si512(to, bits) : _mm512_storeu_si512(to, bits);
}

/// The bits of a vector as elements of T, rounded.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION auto bits_of(const HostVec& value) {
  const auto wide = static_cast<__m512>(value);
  if constexpr (std::is_same_v<T, float>) return _mm512_castps_si512(wide);
  else return avx512::narrow<T>(wide);
}
KOKKOS_FORCEINLINE_FUNCTION __m512i joined(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
KOKKOS_FORCEINLINE_FUNCTION __m512i load_bits(const void* source) {
  return _mm512_loadu_si512(source);
}
#else
template <class T>
KOKKOS_FORCEINLINE_FUNCTION auto bits_of(const HostVec& value) {
  const auto wide = static_cast<__m256>(value);
  if constexpr (std::is_same_v<T, float>) return _mm256_castps_si256(wide);
  else return avx2::narrow<T>(wide);
}
KOKKOS_FORCEINLINE_FUNCTION __m256i joined(__m128i low, __m128i high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}
KOKKOS_FORCEINLINE_FUNCTION __m256i load_bits(const void* source) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(source));
}
#endif

}  // namespace impl
#endif

/// store(); with Stream it bypasses the caches, and `target` is aligned to the size of the written
/// vector.
template <bool Stream, class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_to(T* target, const Vec& value) {
  if constexpr (!Stream) {
    store(target, value);
  } else {
#if defined(KATT_VEC_AVX512) || defined(KATT_VEC_AVX2)
    impl::store_bits<true>(target, impl::bits_of<T>(value));
#endif
  }
}

/// store_to() of two vectors to contiguous elements; a streamed target is aligned to the number of
/// written bytes. In 16 bits they make one register, which is written in one piece.
template <bool Stream, class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_two_to(T* target, const Vec& first, const Vec& second) {
#if defined(KATT_VEC_AVX512) || defined(KATT_VEC_AVX2)
  if constexpr (sizeof(T) == 2 && !std::is_same_v<Vec, float>) {
    return impl::store_bits<Stream>(
        target, impl::joined(impl::bits_of<T>(first), impl::bits_of<T>(second)));
  }
#endif
  constexpr int lanes = sizeof(Vec) / sizeof(float);
  store_to<Stream>(target, first);
  store_to<Stream>(target + lanes, second);
}

/// Copies the elements of two vectors, bypassing the caches; `target` is_streamable().
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void stream_copy_two(const T* source, T* target) {
#if defined(KATT_VEC_AVX512) || defined(KATT_VEC_AVX2)
  constexpr int elements = 2 * sizeof(Vec) / sizeof(float);
  constexpr int step = sizeof(Vec) / sizeof(T);
  for (int i = 0; i < elements; i += step) {
    impl::store_bits<true>(target + i, impl::load_bits(source + i));
  }
#else
  (void)source;
  (void)target;
#endif
}

/// Orders the streaming stores of this thread before its later stores.
KOKKOS_FORCEINLINE_FUNCTION void stream_fence() {
#if defined(KATT_VEC_AVX512) || defined(KATT_VEC_AVX2)
  KOKKOS_IF_ON_HOST((_mm_sfence();))
#endif
}

}  // namespace katt::tile
