#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ops/ternary_linear/ternary_linear_pack.hpp"
#include "tile/engines/in_register.hpp"

// Not in a CUDA build: nvcc refuses vector types in any function that could also run on a device.
#if defined(__AVX512BW__) && !defined(KATT_HAS_CUDA)
#define KATT_TERNARY_AVX512
#include <immintrin.h>
#elif defined(__AVX2__) && !defined(KATT_HAS_CUDA)
#define KATT_TERNARY_AVX2
#include <immintrin.h>
#endif

/// Vectors of bytes on which packed rows are unpacked and multiplied. A vector type holds `width`
/// consecutive bytes and supplies
///   load            from unaligned memory
///   low_digits(v)   the lowest two bits of every byte; shift(v) moves the next two there
///   high_digits(v)  ⌊3·v / 256⌋ of every byte; triple(v) is 3·v mod 256
///   dot(sums, u, s) sums + u·s for unsigned u ≤ 2, or any where it `multiplies_all_bytes`, and signed s,
///                   four products to a 32-bit sum
///   add(a, b)       a + b, sum by sum
///   totals(sums, t) the sums over all lanes, of four vectors at a time
/// and if it `multiplies_all_bytes`
///   digits_at(v, k)    the two bits from 2k on of every byte where they stand: 4^k times a digit
///   quotient(sums, k)  sums / 4^k, of multiples of it
namespace katt::ternary_linear::impl {

/// Four bytes in a 32-bit register: for devices, and hosts without vectors of bytes.
struct FourBytes {
  using Bytes = std::uint32_t;
  using Sums = std::int32_t;
  static constexpr int width = 4;
  static constexpr bool multiplies_all_bytes = false;  // __dp4a() takes signed bytes

  KOKKOS_FORCEINLINE_FUNCTION static Bytes load(const void* from) {
    return *static_cast<const std::uint32_t*>(from);
  }
  KOKKOS_FORCEINLINE_FUNCTION static Sums zero() { return 0; }
  KOKKOS_FORCEINLINE_FUNCTION static Bytes low_digits(Bytes v) { return v & 0x03030303U; }
  KOKKOS_FORCEINLINE_FUNCTION static Bytes shift(Bytes v) { return v >> 2; }
  KOKKOS_FORCEINLINE_FUNCTION static Sums add(Sums a, Sums b) { return a + b; }
  KOKKOS_FORCEINLINE_FUNCTION static Bytes high_digits(Bytes v) {
    return ((even(v) * 3) >> 8 & mask) | (odd(v) * 3 & ~mask);
  }
  KOKKOS_FORCEINLINE_FUNCTION static Bytes triple(Bytes v) {
    return (even(v) * 3 & mask) | (odd(v) * 3 & mask) << 8;
  }
  KOKKOS_FORCEINLINE_FUNCTION static Sums dot(Sums sums, Bytes u, Bytes s) {
#if defined(__CUDA_ARCH__)
    return __dp4a(static_cast<int>(u), static_cast<int>(s), sums);
#else
    for (int byte = 0; byte < 4; ++byte) {
      sums += static_cast<std::int32_t>(u >> (8 * byte) & 0xFFU) *
              static_cast<std::int8_t>(s >> (8 * byte) & 0xFFU);
    }
    return sums;
#endif
  }
  KOKKOS_FORCEINLINE_FUNCTION static std::int32_t total(Sums sums) { return sums; }
  KOKKOS_FORCEINLINE_FUNCTION static void totals(const Sums (&sums)[4], std::int32_t (&t)[4]) {
    for (int k = 0; k < 4; ++k) t[k] = sums[k];
  }

 private:
  static constexpr std::uint32_t mask = 0x00FF00FFU;
  KOKKOS_FORCEINLINE_FUNCTION static std::uint32_t even(Bytes v) { return v & mask; }
  KOKKOS_FORCEINLINE_FUNCTION static std::uint32_t odd(Bytes v) { return v >> 8 & mask; }
};

// Vectors have no 8-bit products. With halving averages h = (v′ + (v′ + 1) / 2 + 1) / 2 of v′ =
// max(v − 1, 0) the upper two bits of h are ⌊3·v / 256⌋ for every byte v (a test goes through them
// all). The idea is that of llama.cpp's ternary formats, github.com/ggml-org/llama.cpp/pull/8151.

#if defined(KATT_TERNARY_AVX512) || defined(KATT_TERNARY_AVX2)
/// Four sums of eight lanes each, by halving all of them together.
KOKKOS_FORCEINLINE_FUNCTION void totals_of_eight(const __m256i (&sums)[4], std::int32_t (&t)[4]) {
  const __m256i all =
      _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(t),
                   _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}
#endif

#if defined(KATT_TERNARY_AVX512)

/// 64 bytes in an AVX-512 register.
struct SixtyFourBytes {
  using Bytes = __m512i;
  using Sums = __m512i;
  static constexpr int width = 64;
#if defined(__AVX512VNNI__)
  static constexpr bool multiplies_all_bytes = true;
#else
  static constexpr bool multiplies_all_bytes = false;  // sums of two products have 16 bits
#endif

  static Bytes load(const void* from) { return _mm512_loadu_si512(from); }
  static Sums zero() { return _mm512_setzero_si512(); }
  static Bytes low_digits(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(3)); }
  static Bytes shift(Bytes v) { return _mm512_srli_epi16(v, 2); }
  static Bytes digits_at(Bytes v, int k) {
    return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(3 << (2 * k))));
  }
  static Sums add(Sums a, Sums b) { return _mm512_add_epi32(a, b); }
  static Sums quotient(Sums sums, int k) {
    return _mm512_srai_epi32(sums, static_cast<unsigned>(2 * k));
  }
  static Bytes high_digits(Bytes v) {
    const __m512i less = _mm512_subs_epu8(v, _mm512_set1_epi8(1));
    const __m512i h = _mm512_avg_epu8(less, _mm512_avg_epu8(less, _mm512_setzero_si512()));
    return _mm512_and_si512(_mm512_srli_epi16(h, 6), _mm512_set1_epi8(3));
  }
  static Bytes triple(Bytes v) { return _mm512_add_epi8(v, _mm512_add_epi8(v, v)); }
  static Sums dot(Sums sums, Bytes u, Bytes s) {
#if defined(__AVX512VNNI__)
    // In place: of the intrinsic, GCC copies every sum twice a step.
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(u), "v"(s));
    return sums;
#else
    const __m512i pairs = _mm512_maddubs_epi16(u, s);
    return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
  }
  static std::int32_t total(Sums sums) { return _mm512_reduce_add_epi32(sums); }
  KOKKOS_FORCEINLINE_FUNCTION static void totals(const Sums (&sums)[4], std::int32_t (&t)[4]) {
    __m256i halves[4];
    for (int k = 0; k < 4; ++k) {
      halves[k] =
          _mm256_add_epi32(_mm512_castsi512_si256(sums[k]), _mm512_extracti64x4_epi64(sums[k], 1));
    }
    totals_of_eight(halves, t);
  }
};
using HostBytes = SixtyFourBytes;

#elif defined(KATT_TERNARY_AVX2)

/// 32 bytes in an AVX2 register.
struct ThirtyTwoBytes {
  using Bytes = __m256i;
  using Sums = __m256i;
  static constexpr int width = 32;
#if defined(__AVXVNNI__)
  static constexpr bool multiplies_all_bytes = true;
#else
  static constexpr bool multiplies_all_bytes = false;  // sums of two products have 16 bits
#endif

  static Bytes load(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static Sums zero() { return _mm256_setzero_si256(); }
  static Bytes low_digits(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(3)); }
  static Bytes shift(Bytes v) { return _mm256_srli_epi16(v, 2); }
  static Bytes digits_at(Bytes v, int k) {
    return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(3 << (2 * k))));
  }
  static Sums add(Sums a, Sums b) { return _mm256_add_epi32(a, b); }
  static Sums quotient(Sums sums, int k) { return _mm256_srai_epi32(sums, 2 * k); }
  static Bytes high_digits(Bytes v) {
    const __m256i less = _mm256_subs_epu8(v, _mm256_set1_epi8(1));
    const __m256i h = _mm256_avg_epu8(less, _mm256_avg_epu8(less, _mm256_setzero_si256()));
    return _mm256_and_si256(_mm256_srli_epi16(h, 6), _mm256_set1_epi8(3));
  }
  static Bytes triple(Bytes v) { return _mm256_add_epi8(v, _mm256_add_epi8(v, v)); }
  static Sums dot(Sums sums, Bytes u, Bytes s) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sums, u, s);
#else
    const __m256i pairs = _mm256_maddubs_epi16(u, s);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
  }
  static std::int32_t total(Sums sums) {
    const __m128i half =
        _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i pair = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, 0xB1)));
  }
  KOKKOS_FORCEINLINE_FUNCTION static void totals(const Sums (&sums)[4], std::int32_t (&t)[4]) {
    totals_of_eight(sums, t);
  }
};
using HostBytes = ThirtyTwoBytes;

#else
using HostBytes = FourBytes;
#endif

/// The vector of bytes of an execution space.
template <class Exec>
using BytesOf = std::conditional_t<is_host_v<Exec>, HostBytes, FourBytes>;

/// The digits of a vector of packed bytes, one vector after the other.
template <class Vector, PackFormat Format>
class Digits {
 public:
  Digits() = default;
  KOKKOS_FORCEINLINE_FUNCTION explicit Digits(const std::uint8_t* from)
      : rest_(Vector::load(from)) {}

  KOKKOS_FORCEINLINE_FUNCTION typename Vector::Bytes next() {
    const auto bytes = rest_;
    if constexpr (Format == PackFormat::two_bit) {
      rest_ = Vector::shift(bytes);
      return Vector::low_digits(bytes);
    } else {
      rest_ = Vector::triple(bytes);
      return Vector::high_digits(bytes);
    }
  }
  /// Value that the sums of products with digit k stand for.
  KOKKOS_FORCEINLINE_FUNCTION static typename Vector::Sums value(typename Vector::Sums sums,
                                                                 int /*k*/) {
    return sums;
  }

 private:
  typename Vector::Bytes rest_;
};

/// Digits of two bits that are multiplied where they stand in their bytes, which saves shifts: sums of
/// products with digit k are 4^k times too large. In 32 bits they hold rows of 2^23 weights, as all sums do.
template <class Vector>
class DigitsInPlace {
 public:
  KOKKOS_FORCEINLINE_FUNCTION explicit DigitsInPlace(const std::uint8_t* from)
      : bytes_(tile::in_register(Vector::load(from))) {}

  KOKKOS_FORCEINLINE_FUNCTION typename Vector::Bytes next() {
    return Vector::digits_at(bytes_, next_++);
  }
  KOKKOS_FORCEINLINE_FUNCTION static typename Vector::Sums value(typename Vector::Sums sums,
                                                                 int k) {
    return Vector::quotient(sums, k);
  }

 private:
  typename Vector::Bytes bytes_;
  int next_ = 0;
};

/// The weight at one place of a packed row: −1, 0 or 1.
KOKKOS_INLINE_FUNCTION int weight_at(PackFormat format, const std::uint8_t* row,
                                     std::int64_t column) {
  const std::int64_t in_block = column % block_weights(format);
  const unsigned byte = row[column / block_weights(format) * block_bytes + in_block % block_bytes];
  const auto digit = static_cast<int>(in_block / block_bytes);
  if (format == PackFormat::two_bit) return static_cast<int>(byte >> (2 * digit) & 3U) - 1;
  unsigned rest = byte;
  for (int k = 0; k < digit; ++k) rest = rest * 3 & 0xFFU;
  return static_cast<int>(rest * 3 >> 8) - 1;
}

}  // namespace katt::ternary_linear::impl
