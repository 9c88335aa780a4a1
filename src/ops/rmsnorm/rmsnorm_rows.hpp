#pragma once

#include <cstdint>
#include <cstring>

#include <Kokkos_Core.hpp>

#include "core/tensor.hpp"
#include "tile/rows/columns.hpp"
#include "tile/rows/pairs.hpp"
#include "tile/rows/stream.hpp"
#include "tile/vec/vec.hpp"

/// Parts that the kernels of both variants share: rows, the statistics of a row, int8 stores.
namespace katt::rmsnorm::impl {

/// Rows of a (tokens, hidden) tensor; none where `data` is null.
template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t stride = 0;

  Matrix() = default;
  template <bool Const>
  explicit Matrix(const BasicTensorRef<2, Const>& tensor)
      : data(static_cast<T*>(tensor.data)), stride(tensor.stride[0]) {}
  Matrix(T* pointer, std::int64_t columns) : data(pointer), stride(columns) {}

  KOKKOS_FORCEINLINE_FUNCTION T* row(std::int64_t i) const {
    return data == nullptr ? nullptr : data + i * stride;
  }
};

/// True when streaming stores can write every row of a tensor.
template <class T>
bool rows_are_streamable(const TensorRef<2>& tensor) {
  return tile::is_streamable(tensor.data) &&
         tensor.stride[0] * static_cast<std::int64_t>(sizeof(T)) % 64 == 0;
}

/// clamp(round half to even(value), −128, 127)
KOKKOS_FORCEINLINE_FUNCTION std::int8_t to_int8(float value) {
  return static_cast<std::int8_t>(
      Kokkos::nearbyint(Kokkos::fmax(-128.0F, Kokkos::fmin(value, 127.0F))));
}
#if defined(KATT_VEC_AVX512)
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION __m128i to_int8_lanes(const Vec& value) {
  return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(static_cast<__m512>(value)));
}
#elif defined(KATT_VEC_AVX2)
/// In the lower half. A value beyond 32 bits becomes −2^31, hence the minimum.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION __m128i to_int8_lanes(const Vec& value) {
  const __m256i whole =
      _mm256_cvtps_epi32(_mm256_min_ps(static_cast<__m256>(value), _mm256_set1_ps(127.0F)));
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  return _mm_packs_epi16(words, words);
}
#elif defined(KATT_VEC_NEON)
/// In the lower half.
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION int8x8_t to_int8_lanes(const Vec& value) {
  const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(static_cast<float32x4_t>(value)));
  return vqmovn_s16(vcombine_s16(words, words));
}
#endif
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION void store_int8(std::int8_t* target, const Vec& value) {
  if constexpr (std::is_same_v<Vec, float>) {
    *target = to_int8(value);
  } else {
#if defined(KATT_VEC_AVX512)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), to_int8_lanes(value));
#elif defined(KATT_VEC_AVX2)
    _mm_storel_epi64(reinterpret_cast<__m128i*>(target), to_int8_lanes(value));
#elif defined(KATT_VEC_NEON)
    const int four = vget_lane_s32(vreinterpret_s32_s8(to_int8_lanes(value)), 0);
    std::memcpy(target, &four, sizeof four);
#else
    for (std::size_t lane = 0; lane < Vec::size(); ++lane) target[lane] = to_int8(value[lane]);
#endif
  }
}
/// Eight bytes a chunk.
template <int Chunks>
KOKKOS_FORCEINLINE_FUNCTION void store_int8(std::int8_t* target, const tile::Pack<Chunks>& value) {
  KATT_UNROLL
  for (int k = 0; k < Chunks; ++k) {
    std::uint64_t bytes = 0;
    KATT_UNROLL
    for (int i = 0; i < tile::chunk_elements; ++i) {
      const std::int8_t one = to_int8(value.lane[k * tile::chunk_elements + i]);
      bytes |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(one)) << (8 * i);
    }
    *reinterpret_cast<std::uint64_t*>(target + k * tile::chunk_stride) = bytes;
  }
}
/// For vectors in the order of tile::load_all() of elements T.
template <class T, class Vec, int N>
KOKKOS_FORCEINLINE_FUNCTION void store_int8(std::int8_t* target, const Vec (&values)[N]) {
  constexpr int lanes = tile::width_v<Vec>;
  if constexpr (lanes > 1 && N == 2 && std::is_same_v<T, bf16>) {  // even and odd elements
#if defined(KATT_VEC_AVX512)
    const __m128i even = to_int8_lanes(values[0]);
    const __m128i odd = to_int8_lanes(values[1]);
    auto* to = reinterpret_cast<__m128i*>(target);
    _mm_storeu_si128(to, _mm_unpacklo_epi8(even, odd));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(even, odd));
#elif defined(KATT_VEC_AVX2)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                     _mm_unpacklo_epi8(to_int8_lanes(values[0]), to_int8_lanes(values[1])));
#elif defined(KATT_VEC_NEON)
    vst1_s8(target, vzip1_s8(to_int8_lanes(values[0]), to_int8_lanes(values[1])));
#else
    for (int lane = 0; lane < lanes; ++lane) {
      for (int k = 0; k < N; ++k) target[2 * lane + k] = to_int8(values[k][lane]);
    }
#endif
  } else {
    for (int k = 0; k < N; ++k) store_int8(target + k * lanes, values[k]);
  }
}

/// tile::load_all(), which asks for what comes 4 KiB later.
template <class T, class V, int N>
KOKKOS_FORCEINLINE_FUNCTION void load_ahead(const T* source, V (&values)[N]) {
  if constexpr (N > 1) {  // not at the end of a row
    constexpr std::int64_t ahead = 4096 / sizeof(T);
    constexpr std::int64_t line = 64 / sizeof(T);
    constexpr std::int64_t elements = N * tile::width_v<V>;
    for (std::int64_t i = 0; i < elements; i += line) tile::prefetch(source + ahead + i);
  }
  tile::load_all(source, values);
}

/// A row's statistics. The row is multiplied by `scale` and then by `rstd`; the first is 1 except
/// for rows whose sum of squares f32 cannot hold.
struct RowScale {
  float scale = 1.0F;
  float rstd = 0.0F;

  /// True when f32 holds the sum of squares of an unscaled row well: finite, and not made of
  /// squares so small that they lost digits (none is below 2^-149, so a sum of 2^-100 has 2^-49 of
  /// itself to lose).
  KOKKOS_FORCEINLINE_FUNCTION static bool is_plain(float sum, float eps_sum) {
    return sum <= Kokkos::Experimental::finite_max_v<float> && sum + eps_sum >= 0x1p-100F;
  }
  /// A power of two that brings such a row into range: |h| ≤ 2^128 to 2^48, |h| ≤ 2^-50 to 2^50.
  KOKKOS_FORCEINLINE_FUNCTION static float rescue(float sum) {
    return sum < 1.0F ? 0x1p100F : 0x1p-80F;
  }

  /// True when `scale` is 1.
  KOKKOS_FORCEINLINE_FUNCTION bool is_plain() const { return scale == 1.0F; }

  KOKKOS_FORCEINLINE_FUNCTION static RowScale of(float scale, float sum, float hidden, float eps) {
    return {scale, 1.0F / Kokkos::sqrt(sum / hidden + eps * scale * scale)};
  }
  /// value · scale · rstd; Plain where is_plain().
  template <bool Plain, class Vec>
  KOKKOS_FORCEINLINE_FUNCTION Vec apply(const Vec& value) const {
    return Plain ? Vec(value * Vec(rstd)) : Vec(Vec(value * Vec(scale)) * Vec(rstd));
  }
};

/// Σ a · b over a row; factors(i, a, b) gives both for the vector, or the element, at i.
template <class Exec, class Team, class FactorsF>
KOKKOS_FORCEINLINE_FUNCTION float sum_of_products(const Team& team, std::int64_t hidden,
                                                  const FactorsF& factors) {
  tile::RowSum<Exec, tile::column_slots> sum;
  tile::for_columns<Exec>(team, 0, hidden, [&]<class V>(std::int64_t i, int slot) {
    V a;
    V b;
    factors(i, a, b);
    sum.multiply_add(a, b, slot);
  });
  return sum.total(team);
}

/// Σ (scale · h)² of a row.
template <class Exec, class T, class Team>
KOKKOS_FORCEINLINE_FUNCTION float sum_of_squares(const Team& team, const T* h, std::int64_t hidden,
                                                 float scale) {
  return sum_of_products<Exec>(team, hidden, [=]<class V>(std::int64_t i, V& a, V& b) {
    a = tile::load<V>(h + i) * V(scale);
    b = a;
  });
}

/// s = 127 / max(largest |out|, 1e-5) of a row; NaN where `unknown` is, a sum of which every out that is no
/// number makes NaN.
KOKKOS_FORCEINLINE_FUNCTION float quantisation_scale(float largest, float unknown) {
  return unknown + 127.0F / tile::max(largest, 1e-5F);
}

}  // namespace katt::rmsnorm::impl
