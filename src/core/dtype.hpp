#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif
#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(__CUDACC__)
#include <arm_neon.h>
#endif

#include "core/host_device.hpp"

namespace katt {

/// Element types of a tensor. Kernels compute all sums, softmax statistics and norms in f32, for
/// every dtype.
enum class Dtype : std::uint8_t {
  f32,  ///< IEEE 754 binary32, 4 bytes
  f16,  ///< IEEE 754 binary16, 2 bytes
  bf16  ///< the upper half of a binary32, 2 bytes
};

/// Every dtype.
inline constexpr std::array<Dtype, 3> all_dtypes{Dtype::f32, Dtype::f16, Dtype::bf16};

namespace impl {

/// float -> IEEE binary16 bits, round to nearest even; overflow gives infinity, NaN stays a quiet
/// NaN.
KATT_INLINE_FUNCTION constexpr std::uint16_t f16_bits_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {  // NaN: keep the upper payload bits
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x01FFU));
  }
  if (magnitude >= 0x477FF000U) {  // 65520 and above round to infinity
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  if (magnitude >= 0x38800000U) {  // normal: re-bias the exponent, then round on 13 bits
    const std::uint32_t rebased = magnitude - (112U << 23);
    return static_cast<std::uint16_t>(sign | ((rebased + 0x0FFFU + ((rebased >> 13) & 1U)) >> 13));
  }
  if (magnitude <= 0x33000000U) {  // 2^-25 and below: a tie to even at most, so zero
    return static_cast<std::uint16_t>(sign);
  }
  // subnormal: the value in units of 2^-24, rounded to nearest even
  const std::uint32_t exponent = magnitude >> 23;  // 102 … 112
  const std::uint32_t mantissa = (magnitude & 0x007FFFFFU) | 0x00800000U;
  const std::uint32_t shift = 126U - exponent;  // 14 … 24
  const std::uint32_t half = (1U << (shift - 1U)) - 1U;
  return static_cast<std::uint16_t>(sign |
                                    ((mantissa + half + ((mantissa >> shift) & 1U)) >> shift));
}

KATT_INLINE_FUNCTION constexpr float float_from_f16_bits(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t mantissa = half & 0x03FFU;
  if (exponent == 0x1FU) {  // infinity, or NaN made quiet as the hardware does
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13) |
                                (mantissa != 0U ? 0x00400000U : 0U));
  }
  if (exponent != 0U) {
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return sign != 0U ? -magnitude : magnitude;
}

/// float -> bfloat16 bits, round to nearest even; NaN stays a quiet NaN.
KATT_INLINE_FUNCTION constexpr std::uint16_t bf16_bits_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace impl

/// IEEE 754 binary16, two bytes on every backend: a storage type, converted to float for
/// arithmetic. Conversions round to nearest even and keep infinities and NaN.
struct f16 {
  std::uint16_t bits = 0;  ///< sign, exponent and fraction as stored

  f16() = default;
  /// Rounds to nearest, ties to even; 65520 and above become infinity.
  KATT_INLINE_FUNCTION explicit f16(float value) {
#if defined(__CUDA_ARCH__)
    bits = __half_as_ushort(__float2half_rn(value));
#else
    bits = host_bits(value);
#endif
  }
  /// The exact value.
  KATT_INLINE_FUNCTION explicit operator float() const {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(bits));
#else
    return host_float(bits);
#endif
  }

 private:
#if defined(__F16C__)
  static std::uint16_t host_bits(float value) {
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
  }
  static float host_float(std::uint16_t half) { return _cvtsh_ss(half); }
#elif defined(__aarch64__) && !defined(__CUDACC__)
  // Not by the type __fp16: GCC folds a conversion there and back, which must make a NaN quiet.
  static std::uint16_t host_bits(float value) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(value))), 0);
  }
  static float host_float(std::uint16_t half) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
  }
#else
  static std::uint16_t host_bits(float value) { return impl::f16_bits_from_float(value); }
  static float host_float(std::uint16_t half) { return impl::float_from_f16_bits(half); }
#endif
};

/// bfloat16 (the upper half of a binary32), two bytes on every backend: a storage type, converted
/// to float for arithmetic. Conversion rounds to nearest even and keeps infinities and NaN.
struct bf16 {
  std::uint16_t bits = 0;  ///< sign, exponent and fraction as stored

  bf16() = default;
  /// Rounds to nearest, ties to even.
  KATT_INLINE_FUNCTION explicit bf16(float value) : bits(impl::bf16_bits_from_float(value)) {}
  /// The exact value.
  KATT_INLINE_FUNCTION explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

static_assert(sizeof(f16) == 2 && sizeof(bf16) == 2);
static_assert(std::is_trivially_copyable_v<f16> && std::is_trivially_copyable_v<bf16>);

/// True for float, f16 and bf16.
template <class T>
inline constexpr bool is_element_v =
    std::is_same_v<T, float> || std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

/// The Dtype of an element type.
template <class T>
requires is_element_v<std::remove_const_t<T>>
inline constexpr Dtype dtype_of = std::is_same_v<std::remove_const_t<T>, float> ? Dtype::f32
                                  : std::is_same_v<std::remove_const_t<T>, f16> ? Dtype::f16
                                                                                : Dtype::bf16;

/// Bytes of one element.
constexpr std::size_t size_of(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }

/// "f32", "f16" or "bf16".
constexpr std::string_view name_of(Dtype dtype) {
  return dtype == Dtype::f32 ? "f32" : dtype == Dtype::f16 ? "f16" : "bf16";
}

/// The dtype of that name, or nothing.
constexpr std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (const Dtype dtype : all_dtypes) {
    if (name_of(dtype) == name) return dtype;
  }
  return std::nullopt;
}

/// Relative spacing of the dtype: a rounded value differs from the exact one by at most half of it.
constexpr double epsilon_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 0x1p-23 : dtype == Dtype::f16 ? 0x1p-10 : 0x1p-7;
}

/// value rounded to the dtype (to nearest, ties to even) and widened again.
inline float round_to(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::f16: return static_cast<float>(f16(value));
    case Dtype::bf16: return static_cast<float>(bf16(value));
    case Dtype::f32: break;
  }
  return value;
}

/// Calls f.operator()<T>() with the element type of a run-time dtype.
template <class F>
decltype(auto) visit_dtype(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f16: return f.template operator()<f16>();
    case Dtype::bf16: return f.template operator()<bf16>();
    case Dtype::f32: break;
  }
  return f.template operator()<float>();
}

}  // namespace katt
