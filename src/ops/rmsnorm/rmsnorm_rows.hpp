#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "tile/pairs.hpp"
#include "tile/rows.hpp"
#include "tile/stream.hpp"
#include "tile/vec.hpp"

/// What the kernels of both variants share: rows, the statistics of a row, int8 stores.
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

/// clamp(round half to even(value), −128, 127)
KOKKOS_FORCEINLINE_FUNCTION std::int8_t to_int8(float value) {
  return static_cast<std::int8_t>(
      Kokkos::nearbyint(Kokkos::fmax(-128.0F, Kokkos::fmin(value, 127.0F))));
}
template <class Vec>
KOKKOS_FORCEINLINE_FUNCTION void store_int8(std::int8_t* target, const Vec& value) {
  if constexpr (std::is_same_v<Vec, float>) {
    *target = to_int8(value);
  } else {
#if defined(KOKKOS_ARCH_AVX512XEON)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                     _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(static_cast<__m512>(value))));
#else
    for (std::size_t lane = 0; lane < Vec::size(); ++lane) target[lane] = to_int8(value[lane]);
#endif
  }
}

/// A row's statistics. The row is multiplied by `scale` and then by `rstd`; the first is 1 except
/// for rows whose sum of squares f32 cannot hold.
struct RowScale {
  float scale = 1.0F;
  float rstd = 0.0F;

  /// Whether f32 holds the sum of squares of an unscaled row well: finite, and not made of squares
  /// so small that they lost digits (none is below 2^-149, so a sum of 2^-100 has 2^-49 of itself
  /// to lose).
  KOKKOS_FORCEINLINE_FUNCTION static bool is_plain(float sum, float eps_sum) {
    return sum <= Kokkos::Experimental::finite_max_v<float> && sum + eps_sum >= 0x1p-100F;
  }
  /// A power of two that brings such a row into range: |h| ≤ 2^128 to 2^48, |h| ≤ 2^-50 to 2^50.
  KOKKOS_FORCEINLINE_FUNCTION static float rescue(float sum) {
    return sum < 1.0F ? 0x1p100F : 0x1p-80F;
  }

  KOKKOS_FORCEINLINE_FUNCTION static RowScale of(float scale, float sum, float hidden, float eps) {
    return {scale, 1.0F / Kokkos::sqrt(sum / hidden + eps * scale * scale)};
  }
  template <class Vec>
  KOKKOS_FORCEINLINE_FUNCTION Vec apply(const Vec& value) const {
    return Vec(Vec(value * Vec(scale)) * Vec(rstd));
  }
};

/// RowScale of a row whose vectors are vector(i), with Pairs pair(i, a, b), and whose tail is
/// scalar(i).
template <class Exec, bool Pairs, class Team, class PairF, class VectorF, class ScalarF>
KOKKOS_FORCEINLINE_FUNCTION RowScale row_scale(const Team& team, std::int64_t hidden, float eps,
                                               const PairF& pair, const VectorF& vector,
                                               const ScalarF& scalar) {
  using Vec = tile::VecOf<Exec>;
  const auto sum_of_squares = [&](float scale) {
    Vec sums[tile::row_unroll] = {Vec(0.0F), Vec(0.0F), Vec(0.0F), Vec(0.0F)};
    float tail = 0.0F;
    const auto add = [&](const Vec& value, int slot) {
      const Vec h = value * Vec(scale);
      sums[slot] = tile::fma(h, h, sums[slot]);
    };
    tile::for_row_pairs<Exec, Pairs>(
        team, hidden,
        [&](std::int64_t i, int slot) {
          Vec a;
          Vec b;
          pair(i, a, b);
          add(a, 2 * slot);
          add(b, 2 * slot + 1);
        },
        [&](std::int64_t i, int slot) { add(vector(i), slot); },
        [&](std::int64_t i) {
          const float h = scalar(i) * scale;
          tail += h * h;
        });
    return tile::sum_over(team, sums, tail);
  };
  const auto n = static_cast<float>(hidden);
  const float sum = sum_of_squares(1.0F);
  if (RowScale::is_plain(sum, eps * n)) return RowScale::of(1.0F, sum, n, eps);
  const float scale = RowScale::rescue(sum);
  return RowScale::of(scale, sum_of_squares(scale), n, eps);
}

}  // namespace katt::rmsnorm::impl
