#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>
#include <Kokkos_SIMD.hpp>

namespace katt::tile {

#if KOKKOS_VERSION >= 40600
template <class Abi>
using SimdOf = Kokkos::Experimental::basic_simd<float, Abi>;
#else
template <class Abi>
using SimdOf = Kokkos::Experimental::simd<float, Abi>;
#endif

namespace impl {

/// 2^f for |f| ≤ ½ by a polynomial of degree 6 (minimax in relative error, 2.0e-9, by Lawson's
/// iteration).
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec exp2_of_fraction(const Vec& f) {
  Vec p(0x1.41fbbcp-13F);
  p = Kokkos::fma(p, f, Vec(0x1.5f3e52p-10F));
  p = Kokkos::fma(p, f, Vec(0x1.3b2d4cp-7F));
  p = Kokkos::fma(p, f, Vec(0x1.c6aee8p-5F));
  p = Kokkos::fma(p, f, Vec(0x1.ebfbdcp-3F));
  p = Kokkos::fma(p, f, Vec(0x1.62e43p-1F));
  return Kokkos::fma(p, f, Vec(1.0F));
}

/// 2^x; times_power(p, n) is p · 2^n for whole n from −126 to 127.
template <class Vec, class F>
KOKKOS_FORCEINLINE_FUNCTION Vec exp2_by_exponents(const Vec& x, const F& times_power) {
  const Vec clamped = Kokkos::max(Vec(-126.0F), x);
  const Vec n = Kokkos::round(clamped);
  const Vec scaled =
      Kokkos::Experimental::condition(x > Vec(127.0F), Vec(Kokkos::Experimental::infinity_v<float>),
                                      times_power(exp2_of_fraction(Vec(clamped - n)), n));
  return Kokkos::Experimental::condition(x < Vec(-126.0F), Vec(0.0F), scaled);
}

/// 2^f for |f| ≤ ½ by a minimax polynomial of degree 4 (in relative error, by Lawson's iteration).
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec exp2_of_fraction_of_16_bits(const Vec& f) {
  Vec p(0x1.3997d6p-7F);
  p = Kokkos::fma(p, f, Vec(0x1.ca1442p-5F));
  p = Kokkos::fma(p, f, Vec(0x1.ec06dap-3F));
  p = Kokkos::fma(p, f, Vec(0x1.62e0dcp-1F));
  return Kokkos::fma(p, f, Vec(0x1.ffffe8p-1F));
}

/// 2^x = of_fraction(f) · 2^n with x = n + f. A sum with the number `shift`, whose spacing is 1,
/// rounds x to n and has n + 127, the exponent field of 2^n, in its lowest bits: from 0, which
/// makes 0, to 255, which makes infinity. to_exponent(v) moves these bits to the exponent field.
template <class Vec, class G, class F>
KOKKOS_FORCEINLINE_FUNCTION Vec exp2_by_shift(const Vec& x, const G& to_exponent,
                                              const F& of_fraction) {
  const Vec shift(0x1.8p23F + 127.0F);
  const Vec clamped = Kokkos::max(Vec(-127.0F), x);
  const Vec shifted = clamped + shift;
  const Vec power = to_exponent(shifted);
  return Vec(of_fraction(Vec(clamped - Vec(shifted - shift))) * power);
}

/// Any type of Kokkos SIMD, by Kokkos' own functions and loops over its lanes.
template <class Vec>
struct PortableOps {
  static constexpr int lanes = sizeof(Vec) / sizeof(float);

  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static Vec load(const T* source) {
    if constexpr (std::is_same_v<T, float>) {
      Vec value;
      value.copy_from(source, Kokkos::Experimental::element_aligned_tag());
      return value;
    } else {
      float wide[lanes];
      for (int lane = 0; lane < lanes; ++lane) wide[lane] = static_cast<float>(source[lane]);
      return load(wide);
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static void store(T* target, const Vec& value) {
    if constexpr (std::is_same_v<T, float>) {
      value.copy_to(target, Kokkos::Experimental::element_aligned_tag());
    } else {
      float wide[lanes];
      store(wide, value);
      for (int lane = 0; lane < lanes; ++lane) target[lane] = static_cast<T>(wide[lane]);
    }
  }
  template <class T>
  KOKKOS_FORCEINLINE_FUNCTION static Vec rounded(const Vec& value) {
    T narrow[lanes];
    store(narrow, value);
    return load(narrow);
  }
  KOKKOS_FORCEINLINE_FUNCTION static Vec max(const Vec& a, const Vec& b) {
    return Kokkos::max(a, b);
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_sum(const Vec& value) {
    float sum = 0;
    for (std::size_t lane = 0; lane < Vec::size(); ++lane) sum += value[lane];
    return sum;
  }
  KOKKOS_FORCEINLINE_FUNCTION static float reduce_max(const Vec& value) {
    float largest = value[0];
    for (std::size_t lane = 1; lane < Vec::size(); ++lane) {
      largest = value[lane] > largest ? value[lane] : largest;
    }
    return largest;
  }
  KOKKOS_FORCEINLINE_FUNCTION static Vec exp2(const Vec& x) {
    return exp2_by_exponents(x, [](Vec scaled, const Vec& n) {
      for (std::size_t lane = 0; lane < Vec::size(); ++lane) {
        if (n[lane] != n[lane]) continue;  // NaN NOLINT(misc-redundant-expression)
        const auto exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(n[lane]));
        scaled[lane] =
            std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled[lane]) + (exponent << 23));
      }
      return scaled;
    });
  }
  KOKKOS_FORCEINLINE_FUNCTION static Vec exp2_of_16_bits(const Vec& x) { return exp2(x); }
  template <class Out>
  KOKKOS_FORCEINLINE_FUNCTION static Vec reciprocal(const Vec& x) {
    return Vec(1.0F) / x;
  }
};

}  // namespace impl

}  // namespace katt::tile
