#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.hpp"
#include "ops/linear/gemm/skinny.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/engines/dots.hpp"
#include "tile/engines/in_register.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/vec/vec.hpp"

/// Units of outer products: a step of k (two of them in pairs of bf16) of 32 bits of a row of
/// op(A), broadcast, times a group of columns of B, which are two vectors.
namespace katt::linear::impl {

/// f32 vectors; operands in dtype T of B and any of A are widened.
template <class Vec, class T>
struct WidenedSteps {
  using Element = T;
  using Packed = float;  ///< a step of a row of op(A)
  using Sum = Vec;
  using Operand = Vec;
  static constexpr int lanes = sizeof(Vec) / sizeof(float);
  static constexpr int columns = 2 * lanes;  ///< of a group
  static constexpr int steps = 1;            ///< of k at a time

  static Sum zero() { return Vec(0.0F); }
  static Operand broadcast(const Packed* a) { return tile::in_register(Vec(*a)); }
  static Sum add(const Sum& sum, const Operand& a, const Operand& b) {
    return tile::fma(a, b, sum);
  }
  /// A group of a row.
  static void load(Operand (&b)[2], const T* row, std::int64_t /*stride*/) {
    b[0] = tile::load<Vec>(row);
    b[1] = tile::load<Vec>(row + lanes);
  }
  /// The first `count` columns of a group, of which `k` steps are there.
  static void load_part(Operand (&b)[2], const T* row, std::int64_t /*stride*/, int count,
                        int /*k*/) {
    const int first = count < lanes ? count : lanes;
    b[0] = tile::load<Vec>(row, tile::PartialVector{first});
    b[1] = tile::load<Vec>(row + first, tile::PartialVector{count - first});
  }
  static Sum load_sum(const float* from) { return tile::load<Vec>(from); }
  static void store_sum(float* to, const Sum& sum) { tile::store(to, sum); }
  static Vec value(const Sum& sum) { return sum; }
  static void store_operand(Packed* to, const Operand& b) { tile::store(to, b); }
  static Operand load_operand(const Packed* from) { return tile::load<Vec>(from); }
  /// A step of op(A) from its first element on; the elements of further steps are `apart`.
  template <class A>
  static Packed pack(const A* a, std::int64_t /*apart*/, int /*k*/) {
    return static_cast<float>(*a);
  }
};

#if defined(KATT_BF16_PANELS)
/// Pairs of bf16 as VDPBF16PS multiplies them.
struct DotSteps {
  using Element = bf16;
  using Packed = std::uint32_t;
  using Sum = __m512;
  using Operand = __m512i;
  static constexpr int lanes = 16;
  static constexpr int columns = 32;
  static constexpr int steps = 2;

  static Sum zero() { return _mm512_setzero_ps(); }
  static Operand broadcast(const Packed* a) { return _mm512_set1_epi32(static_cast<int>(*a)); }
  static Sum add(Sum sum, Operand a, Operand b) { return tile::add_dots(sum, a, b); }
  static void load(Operand (&b)[2], const bf16* row, std::int64_t stride) {
    pair(b, _mm512_loadu_si512(row), _mm512_loadu_si512(row + stride));
  }
  static void load_part(Operand (&b)[2], const bf16* row, std::int64_t stride, int count, int k) {
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
    pair(b, _mm512_maskz_loadu_epi16(mask, row),
         k > 1 ? _mm512_maskz_loadu_epi16(mask, row + stride) : _mm512_setzero_si512());
  }
  static Sum load_sum(const float* from) { return _mm512_loadu_ps(from); }
  static void store_sum(float* to, Sum sum) { _mm512_storeu_ps(to, sum); }
  static tile::bf16_panels::HostVec value(Sum sum) { return tile::bf16_panels::HostVec(sum); }
  static void store_operand(Packed* to, Operand b) { _mm512_storeu_si512(to, b); }
  static Operand load_operand(const Packed* from) { return _mm512_loadu_si512(from); }
  template <class A>
  static Packed pack(const A* a, std::int64_t apart, int k) {
    static_assert(std::is_same_v<A, bf16>);
    std::uint16_t first = 0;
    std::uint16_t second = 0;
    std::memcpy(&first, a, sizeof first);
    if (k > 1) std::memcpy(&second, a + apart, sizeof second);
    return first | static_cast<Packed>(second) << 16U;
  }

 private:
  static void pair(Operand (&b)[2], __m512i first, __m512i second) {
    b[0] = tile::first_pairs(first, second);
    b[1] = tile::last_pairs(first, second);
  }
};
#endif

/// Calls f.operator()<Unit>() for the unit of a product with B in this dtype.
template <class Vec, class F>
decltype(auto) visit_steps(Dtype b, [[maybe_unused]] SkinnyUnit unit, const F& f) {
#if defined(KATT_BF16_PANELS)
  if (unit == SkinnyUnit::dots) return f.template operator()<DotSteps>();
#endif
  return visit_dtype(b, [&]<class T>() -> decltype(auto) {
    return f.template operator()<WidenedSteps<Vec, T>>();
  });
}

/// Calls f.operator()<T>() for a dtype of A that the unit takes.
template <class Unit, class F>
void visit_packable(Dtype a, const F& f) {
  visit_dtype(a, [&]<class T>() {
    if constexpr (Unit::steps == 1 || std::is_same_v<T, typename Unit::Element>) {
      f.template operator()<T>();
    }
  });
}

}  // namespace katt::linear::impl
