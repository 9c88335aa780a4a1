#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/dtype.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/engines/dots.hpp"
#include "tile/engines/in_register.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/vec/vec.hpp"

/// The innermost part of inner products: some rows of A, packed, against some rows of B where they
/// lie, over lines of B (64 bytes of each row).
namespace katt::linear::impl {

/// B in dtype T widened to f32 vectors; A is packed in f32.
template <class Vec, class T>
struct WidenedLines {
  using Packed = float;
  using Element = T;
  using Sum = Vec;
  using Operand = Vec;
  static constexpr int lanes = sizeof(Vec) / sizeof(float);
  static constexpr int elements = lanes;       ///< of a row that a sum takes at a time
  static constexpr int line = 64 / sizeof(T);  ///< elements of a line of B
  static constexpr int vectors = std::max(1, line / lanes);  ///< that a line makes
  /// Most rows of A beside which a prefetched stream of B is read faster than rows side by side.
  static constexpr int most_asked = lanes > 8 && (sizeof(T) == 2 || tile::is_zen5) ? 2 : 0;
  /// True when the processor foresees the stream of a single row better than it is asked for. The chain of a sum
  /// takes Zen 5 as long as the memory in 16 bits, AVX2 longer.
  static constexpr bool is_foreseen =
      lanes == 8 ? sizeof(T) == 4 : tile::is_zen && !(tile::is_zen5 && sizeof(T) == 2);

  static Sum zero() { return Vec(0.0F); }
  static Sum load_sum(const float* from) { return tile::load<Vec>(from); }
  static void store_sum(float* to, const Sum& sum) { tile::store(to, sum); }
  static Operand load(const T* from) { return tile::load<Vec>(from); }
  static Operand load(const T* from, int count) {
    return tile::load<Vec>(from, tile::PartialVector{count});
  }
  static Operand load_packed(const float* from) { return tile::in_register(tile::load<Vec>(from)); }
  static Sum add(const Sum& sum, const Operand& a, const Operand& b) {
    return tile::add_in_register(sum, a, b);
  }
};

#if defined(KATT_BF16_PANELS)
/// Pairs of bf16 as VDPBF16PS multiplies them; A is packed in bf16.
struct DotLines {
  using Packed = bf16;
  using Element = bf16;
  using Sum = __m512;
  using Operand = __m512i;
  static constexpr int lanes = 16;
  static constexpr int elements = 32;
  static constexpr int line = 32;
  static constexpr int vectors = 1;
  static constexpr int most_asked = 5;
  static constexpr bool is_foreseen = tile::is_zen && !tile::is_zen5;

  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum load_sum(const float* from) { return _mm512_loadu_ps(from); }
  static void store_sum(float* to, Sum sum) { _mm512_storeu_ps(to, sum); }
  static Operand load(const bf16* from) { return _mm512_loadu_si512(from); }
  static Operand load(const bf16* from, int count) {
    return tile::bf16_panels::load_dwords(from, count);
  }
  static Operand load_packed(const bf16* from) { return load(from); }
  static Sum add(Sum sum, Operand a, Operand b) { return tile::add_dots(sum, a, b); }
};
#endif

/// How many rows of A and of B the registers hold sums for. A sum that waits for itself takes several
/// cycles a step: enough of them side by side keep the units busy, from a single row of A on.
template <class Unit>
struct InnerShape {
  static constexpr bool has_32_registers = Unit::lanes == 16 || Unit::lanes == 4;
  static constexpr int most_a = has_32_registers ? 8 : 4;
  static constexpr int rows_of_b(int rows_of_a) {
    if (!has_32_registers) return rows_of_a == 1 ? 6 : rows_of_a == 2 ? 4 : 3;
    return rows_of_a > 6 ? 3 : 4;
  }
};

/// A pass of the kernel over `lines` lines of B, the last of which holds `last` elements.
template <class Unit>
struct InnerPass {
  const typename Unit::Packed* a;   ///< (lines, vectors, rows of A, elements)
  const typename Unit::Element* b;  ///< the first of the rows of B
  std::int64_t stride;              ///< of B
  std::int64_t lines;
  int last;
  bool resume;              ///< add to the sums that are there
  float* sums;              ///< (rows of B, sum_stride), a vector for each row of A
  std::int64_t sum_stride;  ///< in elements
  /// Where the rows of B lie that come a block later, and which of their lines to ask for: so many
  /// apart, from `ahead_first` on; null: none.
  const typename Unit::Element* ahead;
  std::int64_t ahead_first, ahead_every;
};

template <class Unit, int RowsOfA, int RowsOfB>
void inner_kernel(const InnerPass<Unit>& pass) {
  using Sum = typename Unit::Sum;
  using Operand = typename Unit::Operand;
  constexpr int lanes = Unit::lanes;
  Sum sums[RowsOfB][RowsOfA];
#pragma GCC unroll 32
  for (int i = 0; i < RowsOfB * RowsOfA; ++i) {
    const float* from = pass.sums + i / RowsOfA * pass.sum_stride + i % RowsOfA * lanes;
    sums[i / RowsOfA][i % RowsOfA] = pass.resume ? Unit::load_sum(from) : Unit::zero();
  }
  const auto* a = pass.a;
  const std::int64_t stride = pass.stride;
  const auto multiply = [&](const Operand(&b)[RowsOfB]) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int r = 0; r < RowsOfA; ++r) {
      const Operand row = Unit::load_packed(a + r * Unit::elements);
#pragma GCC unroll 6
      for (int j = 0; j < RowsOfB; ++j) sums[j][r] = Unit::add(sums[j][r], row, b[j]);
    }
    a += RowsOfA * Unit::elements;
  };
  const bool is_ragged = pass.last != Unit::line && pass.lines > 0;
  const std::int64_t whole = pass.lines - (is_ragged ? 1 : 0);
  const auto* b = pass.b;
  const auto step = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int v = 0; v < Unit::vectors; ++v) {
      Operand operand[RowsOfB];
#pragma GCC unroll 6
      for (int j = 0; j < RowsOfB; ++j) {
        operand[j] = Unit::load(b + j * stride + v * Unit::elements);
      }
      multiply(operand);
    }
    b += Unit::line;
  };
  std::int64_t l = 0;
  // A stream that the processor foresees: the fewer instructions a line, the more lines are under way.
  if (RowsOfB == 1 && pass.ahead == nullptr) {
    for (; l + 2 <= whole; l += 2) {
      step();
      step();
    }
  }
  std::int64_t asks = pass.ahead == nullptr ? whole : pass.ahead_first;
  for (; l < whole; ++l) {
    if (l == asks) {
#pragma GCC unroll 6
      for (int j = 0; j < RowsOfB; ++j) tile::prefetch(pass.ahead + j * stride + l * Unit::line);
      asks += pass.ahead_every;
    }
    step();
  }
  if (is_ragged) {
    for (int done = 0; done < pass.last; done += Unit::elements) {
      const int count = std::min(Unit::elements, pass.last - done);
      Operand operand[RowsOfB];
      for (int j = 0; j < RowsOfB; ++j) {
        operand[j] = Unit::load(pass.b + j * stride + whole * Unit::line + done, count);
      }
      multiply(operand);
    }
  }
#pragma GCC unroll 32
  for (int i = 0; i < RowsOfB * RowsOfA; ++i) {
    Unit::store_sum(pass.sums + i / RowsOfA * pass.sum_stride + i % RowsOfA * lanes,
                    sums[i / RowsOfA][i % RowsOfA]);
  }
}

/// The kernels for 1 … most_a rows of A: for rows_of_b() rows of B, and for one.
template <class Unit>
struct InnerKernels {
  using Kernel = void (*)(const InnerPass<Unit>&);
  static constexpr int most = InnerShape<Unit>::most_a;

  static Kernel of(int rows_of_a, bool one_of_b) {
    static constexpr auto kernels = []<int... R>(std::integer_sequence<int, R...>) {
      return std::array<std::array<Kernel, 2>, most>{
          {{inner_kernel<Unit, R + 1, InnerShape<Unit>::rows_of_b(R + 1)>,
            inner_kernel<Unit, R + 1, 1>}...}};
    }
    (std::make_integer_sequence<int, most>{});
    return kernels[static_cast<std::size_t>(rows_of_a - 1)][one_of_b ? 1 : 0];
  }
};

}  // namespace katt::linear::impl
