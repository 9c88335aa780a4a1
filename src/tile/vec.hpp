#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>
#include <Kokkos_SIMD.hpp>

#include "core/dtype.hpp"
#include "core/execution.hpp"

// nvcc refuses vector types in any function that could also run on a device, and every kernel
// could: in a CUDA build the vectors of the host are single floats too.
#if !defined(KATT_HAS_CUDA)
#if defined(KOKKOS_ARCH_AVX512XEON)
#define KATT_VEC_AVX512
#include <immintrin.h>
#elif defined(KOKKOS_ARCH_AVX2)
#define KATT_VEC_AVX2
#include <immintrin.h>
#endif
#endif

/// Vectors of f32: the widest Kokkos SIMD type of the host, a single float on a device (there the
/// lanes are threads). Loads and stores convert from and to the storage dtype.
namespace katt::tile {

#if KOKKOS_VERSION >= 40600
template <class Abi>
using SimdOf = Kokkos::Experimental::basic_simd<float, Abi>;
#else
template <class Abi>
using SimdOf = Kokkos::Experimental::simd<float, Abi>;
#endif

namespace impl {

#if defined(KATT_VEC_AVX512)
using HostAbi = Kokkos::Experimental::simd_abi::avx512_fixed_size<16>;
inline constexpr const char* host_name = "avx512";
#elif defined(KATT_VEC_AVX2)
using HostAbi = Kokkos::Experimental::simd_abi::avx2_fixed_size<8>;
inline constexpr const char* host_name = "avx2";
#elif defined(KOKKOS_ARCH_ARM_NEON) && !defined(KATT_HAS_CUDA)
using HostAbi = Kokkos::Experimental::simd_abi::neon_fixed_size<4>;
inline constexpr const char* host_name = "neon";
#else
using HostAbi = void;  // single floats
inline constexpr const char* host_name = "scalar";
#endif

template <class Abi>
struct host_vec {
  using type = SimdOf<Abi>;
};
template <>
struct host_vec<void> {
  using type = float;
};

template <class Exec>
struct vec_of {
  using type = std::conditional_t<is_host_v<Exec>, typename host_vec<HostAbi>::type, float>;
};

}  // namespace impl

/// The vector type of an execution space.
template <class Exec>
using VecOf = typename impl::vec_of<Exec>::type;

/// The name of the host's vectors: "avx512", "avx2", "neon" or "scalar".
inline constexpr const char* vector_name = impl::host_name;

/// Number of f32 lanes of the vector type of an execution space.
template <class Exec>
inline constexpr int lanes_v = sizeof(VecOf<Exec>) / sizeof(float);

#if defined(KATT_VEC_AVX512)
namespace impl {

template <class T>
KOKKOS_FORCEINLINE_FUNCTION __m512 widen(__m256i narrow) {
  if constexpr (std::is_same_v<T, f16>) {
    return _mm512_cvtph_ps(narrow);
  } else {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
}

/// To nearest even in the upper half of each lane; a NaN stays one.
KOKKOS_FORCEINLINE_FUNCTION __m256i bf16_by_integers(__m512 wide) {
  const __m512i bits = _mm512_castps_si512(wide);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(wide, wide, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
}

/// A vector rounded to nearest even, in a register.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION __m256i narrow(__m512 wide) {
  if constexpr (std::is_same_v<T, f16>) {
    return _mm512_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);
  } else {
#if defined(__AVX512BF16__)
    // One instruction in place of nine, but it takes subnormal numbers as 0.
    constexpr int subnormal = 0x20;
    if (_mm512_fpclass_ps_mask(wide, subnormal) == 0) [[likely]] {
      return __m256i(_mm512_cvtneps_pbh(wide));
    }
#endif
    return bf16_by_integers(wide);
  }
}

}  // namespace impl
#endif

/// Reads one vector from contiguous elements of any dtype, widened to f32.
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION Vec load(const T* source) {
  if constexpr (std::is_same_v<Vec, float>) {
    return static_cast<float>(*source);
  } else if constexpr (std::is_same_v<T, float>) {
    Vec value;
    value.copy_from(source, Kokkos::Experimental::element_aligned_tag());
    return value;
  } else {
#if defined(KATT_VEC_AVX512)
    return Vec(impl::widen<T>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source))));
#elif defined(KATT_VEC_AVX2)
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    if constexpr (std::is_same_v<T, f16>) {
      return Vec(_mm256_cvtph_ps(half));
    } else {
      return Vec(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
    }
#else
    constexpr int lanes = sizeof(Vec) / sizeof(float);
    float wide[lanes];
    for (int lane = 0; lane < lanes; ++lane) wide[lane] = static_cast<float>(source[lane]);
    return load<Vec>(wide);
#endif
  }
}

/// Writes one vector to contiguous elements of any dtype, rounded to nearest even.
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* target, const Vec& value) {
  if constexpr (std::is_same_v<Vec, float>) {
    *target = static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, float>) {
    value.copy_to(target, Kokkos::Experimental::element_aligned_tag());
  } else {
#if defined(KATT_VEC_AVX512)
    const __m256i narrow = impl::narrow<T>(static_cast<__m512>(value));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), narrow);
#else
    constexpr int lanes = sizeof(Vec) / sizeof(float);
    float wide[lanes];
    store(wide, value);
    for (int lane = 0; lane < lanes; ++lane) target[lane] = static_cast<T>(wide[lane]);
#endif
  }
}

/// The vector as it is after a trip through T.
template <class T, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec rounded(const Vec& value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<Vec, float>) {
    return static_cast<float>(static_cast<T>(value));
  } else {
#if defined(KATT_VEC_AVX512)
    return Vec(impl::widen<T>(impl::narrow<T>(static_cast<__m512>(value))));
#else
    T narrow[sizeof(Vec) / sizeof(float)];
    store(narrow, value);
    return load<Vec>(narrow);
#endif
  }
}

/// The cache that prefetch() fills, as __builtin_prefetch counts them: the first-level one, on Zen
/// the second, where its cores have more misses in flight (docs/performance.md).
#if defined(__znver1__) || defined(__znver2__) || defined(__znver3__) || defined(__znver4__) || \
    defined(__znver5__)
inline constexpr int prefetch_locality = 2;
#else
inline constexpr int prefetch_locality = 3;
#endif

/// Asks for the cache line of an address before it is needed; any address may be given. Nothing on
/// a device.
KOKKOS_FORCEINLINE_FUNCTION void prefetch(const void* address) {
  KOKKOS_IF_ON_HOST((__builtin_prefetch(address, 0, prefetch_locality);))
  (void)address;
}

/// a·b + c, rounded once.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return Kokkos::fma(a, b, c);
}

/// Lane-wise maximum; where either operand is NaN the lane is b.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec max(const Vec& a, const Vec& b) {
  if constexpr (std::is_same_v<Vec, float>) {
    return a > b ? a : b;
  } else {
    return Kokkos::max(a, b);
  }
}

/// Sum over the lanes.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION float reduce_sum(const Vec& value) {
  if constexpr (std::is_same_v<Vec, float>) {
    return value;
  } else {
#if defined(KATT_VEC_AVX512)
    return _mm512_reduce_add_ps(static_cast<__m512>(value));
#else
    float sum = 0;
    for (std::size_t lane = 0; lane < Vec::size(); ++lane) sum += value[lane];
    return sum;
#endif
  }
}

/// Maximum over the lanes.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION float reduce_max(const Vec& value) {
  if constexpr (std::is_same_v<Vec, float>) {
    return value;
  } else {
#if defined(KATT_VEC_AVX512)
    return _mm512_reduce_max_ps(static_cast<__m512>(value));
#else
    float largest = value[0];
    for (std::size_t lane = 1; lane < Vec::size(); ++lane) {
      largest = value[lane] > largest ? value[lane] : largest;
    }
    return largest;
#endif
  }
}

/// 2^x for x ≤ 128, relative error below 2^-23; results under 2^-126 may be flushed to 0, those
/// over 2^127 may be infinite; NaN stays NaN. x = n + f with |f| ≤ ½; 2^f by a polynomial of degree
/// 6 (minimax in relative error, 2.0e-9, by Lawson's iteration), 2^n by the exponent field.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec exp2(const Vec& x) {
  if constexpr (std::is_same_v<Vec, float>) {
    return Kokkos::exp2(x);
  } else {
    const auto polynomial = [](const Vec& f) {
      Vec p(0x1.41fbbcp-13F);
      p = Kokkos::fma(p, f, Vec(0x1.5f3e52p-10F));
      p = Kokkos::fma(p, f, Vec(0x1.3b2d4cp-7F));
      p = Kokkos::fma(p, f, Vec(0x1.c6aee8p-5F));
      p = Kokkos::fma(p, f, Vec(0x1.ebfbdcp-3F));
      p = Kokkos::fma(p, f, Vec(0x1.62e43p-1F));
      return Kokkos::fma(p, f, Vec(1.0F));
    };
#if defined(KATT_VEC_AVX512)
    const Vec clamped = Kokkos::max(Vec(-160.0F), x);
    const Vec n = Kokkos::round(clamped);
    return Vec(
        _mm512_scalef_ps(static_cast<__m512>(polynomial(clamped - n)), static_cast<__m512>(n)));
#else
    const Vec clamped = Kokkos::max(Vec(-126.0F), x);
    const Vec n = Kokkos::round(clamped);
    Vec scaled = polynomial(clamped - n);
#if defined(KATT_VEC_AVX2)
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(static_cast<__m256>(n)), 23);
    scaled = Vec(_mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(static_cast<__m256>(scaled)), exponent)));
#else
    for (std::size_t lane = 0; lane < Vec::size(); ++lane) {
      if (n[lane] != n[lane]) continue;  // NaN
      const auto exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(n[lane]));
      scaled[lane] =
          std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled[lane]) + (exponent << 23));
    }
#endif
    scaled = Kokkos::Experimental::condition(x > Vec(127.0F),
                                             Vec(Kokkos::Experimental::infinity_v<float>), scaled);
    return Kokkos::Experimental::condition(x < Vec(-126.0F), Vec(0.0F), scaled);
#endif
  }
}

#if defined(KATT_VEC_AVX512)
KOKKOS_FORCEINLINE_FUNCTION __m512 exp2_of_16_bits(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  __m512 p = _mm512_set1_ps(0x1.bb7cd4p-7F);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.aa13fp-5F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee798ap-3F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d166p-1F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.00002cp+0F));
  return _mm512_scalef_ps(p, x);
}
#endif

/// 2^x to a relative error of 2.6e-6, far below the rounding of 16 bits (minimax polynomial of
/// degree 4 on [0, 1), by Lawson's iteration).
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec exp2_of_16_bits(const Vec& x) {
#if defined(KATT_VEC_AVX512)
  if constexpr (!std::is_same_v<Vec, float>) {
    return Vec(exp2_of_16_bits(static_cast<__m512>(x)));
  }
#endif
  return exp2(x);
}

/// tanh x, relative error below 2^-21. Small arguments by an odd polynomial of degree 11 (minimax
/// in relative error on |x| ≤ 0.55 by Lawson's iteration), others by 1 − 2 / (e^(2|x|) + 1).
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec tanh(const Vec& x) {
  if constexpr (std::is_same_v<Vec, float>) {
    return Kokkos::tanh(x);
  } else {
    constexpr float two_log2e = 2.8853900817779268F;
    const Vec square = x * x;
    Vec p(-0x1.9b3046p-8F);
    p = Kokkos::fma(p, square, Vec(0x1.593d08p-6F));
    p = Kokkos::fma(p, square, Vec(-0x1.b9287ap-5F));
    p = Kokkos::fma(p, square, Vec(0x1.110d26p-3F));
    p = Kokkos::fma(p, square, Vec(-0x1.55554ap-2F));
    const Vec small = Kokkos::fma(Vec(p * square), x, x);
    const Vec magnitude = Kokkos::abs(x);
    const Vec limited =
        Kokkos::Experimental::condition(magnitude > Vec(10.0F), Vec(10.0F), magnitude);
    const Vec large = Vec(1.0F) - Vec(2.0F) / (exp2(Vec(limited * Vec(two_log2e))) + Vec(1.0F));
    return Kokkos::Experimental::condition(magnitude < Vec(0.55F), small,
                                           Vec(Kokkos::copysign(large, x)));
  }
}

}  // namespace katt::tile
