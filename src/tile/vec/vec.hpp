#pragma once

#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/dtype.hpp"
#include "core/execution.hpp"
#include "tile/vec/constants.hpp"
#include "tile/vec/portable.hpp"
#include "tile/vec/scalar.hpp"

// nvcc refuses vector types in any function that could also run on a device, as every kernel could.
// So in a CUDA build the vectors of the host are single floats, too.
#if defined(KATT_HAS_CUDA)
#elif defined(KOKKOS_ARCH_AVX512XEON)
#define KATT_VEC_AVX512
#include "tile/vec/avx512.hpp"
#elif defined(KOKKOS_ARCH_AVX2)
#define KATT_VEC_AVX2
#include "tile/vec/avx2.hpp"
#elif defined(KOKKOS_ARCH_ARM_NEON)
#define KATT_VEC_NEON
#include "tile/vec/neon.hpp"
#endif

/// Vectors of f32: the widest Kokkos SIMD type of the host, a single float on a device (there the
/// lanes are threads). Loads and stores convert from and to the storage dtype. The special code of
/// an instruction set stands in its file in vec/.
namespace katt::tile {

namespace impl {

#if !defined(KATT_VEC_AVX512) && !defined(KATT_VEC_AVX2) && !defined(KATT_VEC_NEON)
using HostVec = float;
using HostOps = ScalarOps;
inline constexpr const char* host_name = "scalar";
#endif

template <class Vec>
using OpsOf = std::conditional_t<std::is_arithmetic_v<Vec>, ScalarOps, HostOps>;

}  // namespace impl

/// The vector type of an execution space.
template <class Exec>
using VecOf = std::conditional_t<is_host_v<Exec>, impl::HostVec, float>;

/// The name of the host's vectors: "avx512", "avx2", "neon" or "scalar".
inline constexpr const char* vector_name = impl::host_name;

/// Number of f32 lanes of the vector type of an execution space.
template <class Exec>
inline constexpr int lanes_v = sizeof(VecOf<Exec>) / sizeof(float);

/// Reads one vector from contiguous elements of any dtype, widened to f32.
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION Vec load(const T* source) {
  return impl::OpsOf<Vec>::load(source);
}

/// Writes one vector to contiguous elements of any dtype, rounded to nearest even.
template <class Vec, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* target, const Vec& value) {
  impl::OpsOf<Vec>::store(target, value);
}

/// The vector rounded to T and widened again.
template <class T, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec rounded(const Vec& value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return impl::OpsOf<Vec>::template rounded<T>(value);
  }
}

/// True when this code is compiled for AMD's Zen.
#if defined(__znver1__) || defined(__znver2__) || defined(__znver3__) || defined(__znver4__) || \
    defined(__znver5__)
inline constexpr bool is_zen = true;
#else
inline constexpr bool is_zen = false;
#endif

/// True when it is compiled for Zen 5, whose cores multiply two full vectors a cycle and load two:
/// an operand in memory for every product is then the limit. (AVX-VNNI distinguishes it from Zen 4;
/// GCC 12 has no name for either.)
#if defined(__AVXVNNI__)
inline constexpr bool is_zen5 = is_zen;
#else
inline constexpr bool is_zen5 = false;
#endif

/// The cache that prefetch() fills, as __builtin_prefetch counts them: the first-level one; up to
/// Zen 4 the second-level one, which allows more misses in flight (docs/performance.md).
inline constexpr int prefetch_locality = is_zen && !is_zen5 ? 2 : 3;

/// Prefetches the cache line of an address; any address is allowed. Does nothing on a device.
KOKKOS_FORCEINLINE_FUNCTION void prefetch(const void* address) {
  KOKKOS_IF_ON_HOST((__builtin_prefetch(address, 0, prefetch_locality);))
  (void)address;
}

/// a·b + c, rounded once.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return Kokkos::fma(a, b, c);
}

/// Lane-wise maximum; the lane is b when either operand is NaN.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec max(const Vec& a, const Vec& b) {
  return impl::OpsOf<Vec>::max(a, b);
}

/// Sum over the lanes.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION float reduce_sum(const Vec& value) {
  return impl::OpsOf<Vec>::reduce_sum(value);
}

/// Maximum over the lanes.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION float reduce_max(const Vec& value) {
  return impl::OpsOf<Vec>::reduce_max(value);
}

/// 2^x for x ≤ 128, relative error below 2^-23; results under 2^-126 may be flushed to 0, those
/// over 2^127 may be infinite; NaN stays NaN. x = n + f with |f| ≤ ½; 2^f by a polynomial, 2^n by
/// the exponent field.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec exp2(const Vec& x) {
  return impl::OpsOf<Vec>::exp2(x);
}

/// 2^x to a relative error of 2.6e-6, far below the rounding of 16 bits.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec exp2_of_16_bits(const Vec& x) {
  return impl::OpsOf<Vec>::exp2_of_16_bits(x);
}

/// 1 / x for x ≥ 1, relative error below 2^-23, or 2^-14 where the result becomes a bf16.
template <class Out, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec reciprocal(const Vec& x) {
  return impl::OpsOf<Vec>::template reciprocal<Out>(x);
}

/// σ(x) = 1 / (1 + e^−x), for a result that becomes an Out. Below x = −87, where e^−x leaves f32,
/// it is 0.
template <class Out, class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec sigmoid(const Vec& x) {
  constexpr float infinite = 128.0F;  // 2^128
  const auto exponential = [&] {
    const Vec exponent = -max(Vec(-infinite), Vec(x * Vec(log2e)));
    if constexpr (std::is_same_v<Out, float>) {
      return exp2(exponent);
    } else {
      return exp2_of_16_bits(exponent);
    }
  };
  return reciprocal<Out>(Vec(Vec(1.0F) + exponential()));
}

/// tanh x, relative error below 2^-21 and magnitude at most 1: x · P(x²) / Q(x²) with polynomials of
/// degree 4 (minimax in relative error up to 7.9, by Lawson's iteration). NaN stays NaN.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION Vec tanh(const Vec& x) {
  if constexpr (std::is_arithmetic_v<Vec>) {
    return Kokkos::tanh(x);
  } else {
    const Vec least(-7.9F);
    const Vec limited = -max(least, Vec(-max(least, x)));
    const Vec square = limited * limited;
    Vec p(0x1.090dp-26F);
    p = Kokkos::fma(p, square, Vec(0x1.717d28p-16F));
    p = Kokkos::fma(p, square, Vec(0x1.d51b1p-9F));
    p = Kokkos::fma(p, square, Vec(0x1.1377fep-3F));
    p = Kokkos::fma(p, square, Vec(1.0F));
    Vec q(0x1.cda4cep-21F);
    q = Kokkos::fma(q, square, Vec(0x1.66fef2p-12F));
    q = Kokkos::fma(q, square, Vec(0x1.ad2238p-6F));
    q = Kokkos::fma(q, square, Vec(0x1.df115p-2F));
    q = Kokkos::fma(q, square, Vec(1.0F));
    return limited * p * reciprocal<float>(q);
  }
}

}  // namespace katt::tile
