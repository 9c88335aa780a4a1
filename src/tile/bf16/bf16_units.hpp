#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tile/bf16/amx.hpp"
#include "tile/bf16/bf16_panels.hpp"

/// The units of a CPU that multiply bf16 and sum in f32. All read the same packed panels:
///
///   AmxUnit   TDPBF16PS, tile registers        16 × 16 × 32 products an instruction
///   DotUnit   VDPBF16PS of AVX512-BF16         16 × 2 an instruction; a row of a panel of B is a
///                                              vector, a pair of A is broadcast from memory
///
/// Both take subnormal operands as 0 and make subnormal sums 0. They add the products in different
/// orders, so that results of the two differ in the last bits; the results of one unit do not
/// depend on the division of the work. Kernels are templates of the unit; the program checks at run
/// time which units it may use.
namespace katt::tile::bf16_panels {

/// The unit of this process: the fastest one that the CPU has and the kernel grants; none when bf16
/// widened to f32 is faster.
enum class UnitName : std::uint8_t { none, dot, amx };

inline UnitName unit() {
#if defined(KATT_BF16_PANELS)
  if (cpu_features().amx_bf16) return UnitName::amx;
  if (cpu_features().fast_avx512_bf16) return UnitName::dot;
#endif
  return UnitName::none;
}

/// The reason why this process cannot use a unit; empty when it can.
inline std::string refusal(UnitName unit) {
#if defined(KATT_BF16_PANELS)
  if (unit == UnitName::dot) {
    return cpu_features().avx512_bf16 ? "" : "this CPU has no AVX512-BF16";
  }
  return amx::refusal();
#else
  (void)unit;
  return "this build has no AVX-512 vectors";
#endif
}

/// "amx", "avx512_bf16", or "" for none.
inline const char* name_of(UnitName unit) {
  constexpr std::array names{"", "avx512_bf16", "amx"};
  return names[static_cast<std::size_t>(unit)];
}

#if defined(KATT_BF16_PANELS)

/// A product as a unit computes it: C(left × right panels) = (resume ? C : 0) + A·B over steps of 32
/// of depth. C lies as [2 panels of B][2 panels of A].
struct Product {
  int left = 2, right = 2;  ///< panels of A and of B: 1 or 2
  int steps = 0;            ///< fixed at compile time when > 0
  bool keeps_left = false;  ///< true: the first-level cache keeps A, and B streams past it; false:
                            ///< the reverse
  bool keeps_sums = true;   ///< and C
};

/// A packed operand: at(i) points to the panels of step i, one after the other.
template <class At>
struct Packed {
  static constexpr std::int64_t row_bytes = amx::row_bytes, panel_bytes = amx::panel_bytes;
  At at;
  KOKKOS_FORCEINLINE_FUNCTION const bf16* operator()(int i) const { return at(i); }
};

/// Work beside the products: share(i, n) does part i of n between instructions. An optional ahead()
/// is called once a step.
template <class B>
concept Beside = requires(B& beside) {
  beside.share(0, 1);
};

template <class B>
KOKKOS_FORCEINLINE_FUNCTION void look_ahead(B& beside) {
  if constexpr (requires { beside.ahead(); }) beside.ahead();
}

/// U::product<Product>(a, b, steps, resume, c, beside) multiplies. Operands give the begin of the
/// first panel of a step, the distance of a panel's rows, and the distance of the panels; the rows
/// of B, which are pairs of rows, lie together.
template <class U>
concept Unit = requires(const bf16* (*panels)(int), float* c) {
  typename U::Session;
  { U::section_bytes } -> std::convertible_to<std::int64_t>;
  U::template product_2x2<0>(panels, panels, 1, true, c, nothing);
};

/// Members that all units have.
template <class U>
struct Products {
  /// C = (resume ? C : 0) + A·B over `steps` steps of two panels each; a(i) and b(i) point to the
  /// panels of step i. Steps > 0 fixes the number of steps.
  template <int Steps, class A, class B, Beside Work>
  KOKKOS_FORCEINLINE_FUNCTION static void product_2x2(const A& a, const B& b, int steps,
                                                      bool resume, float* c, Work&& beside) {
    U::template product<Product{.steps = Steps}>(Packed<A>{a}, Packed<B>{b}, steps, resume, c,
                                                 beside);
  }
};

/// Two panels of A and two of B feed four accumulators, one load for a product.
struct AmxUnit : Products<AmxUnit> {
  using Session = amx::Session;
  /// Bytes for one pass over packed operands: half of the second-level cache of such CPUs.
  static constexpr std::int64_t section_bytes = std::int64_t{1} << 20;

  template <Product product_, class A, class B, class Work>
  KOKKOS_FORCEINLINE_FUNCTION static void product(const A& a, const B& b, int steps, bool resume,
                                                  float* c, Work&& beside) {
    constexpr int products = product_.left * product_.right;
    constexpr bool two_left = product_.left > 1, two_right = product_.right > 1;
    const auto each_sum = [&](const auto& f) __attribute__((always_inline)) {
      f(std::integral_constant<int, 0>{});
      if constexpr (two_left) f(std::integral_constant<int, 1>{});
      if constexpr (two_right) f(std::integral_constant<int, 2>{});
      if constexpr (two_left && two_right) f(std::integral_constant<int, 3>{});
    };
    each_sum([&](auto t) __attribute__((always_inline)) {
      if (resume) load<product_.keeps_sums, t>(c + t * panel_floats, row_bytes);
      else amx::zero<t>();
    });
    const auto step = [&](int i, int count) __attribute__((always_inline)) {
      const auto share = [&](int n) __attribute__((always_inline)) {
        beside.share(i * products + n, count * products);
      };
      look_ahead(beside);
      const auto* left = reinterpret_cast<const std::byte*>(a(i));
      const auto* right = reinterpret_cast<const std::byte*>(b(i));
      load<product_.keeps_left, 4>(left, a.row_bytes);
      load<!product_.keeps_left, 6>(right, b.row_bytes);
      amx::product_bf16<0, 4, 6>();
      share(0);
      if constexpr (two_left) {
        load<product_.keeps_left, 5>(left + a.panel_bytes, a.row_bytes);
        amx::product_bf16<1, 5, 6>();
        share(1);
      }
      if constexpr (two_right) {
        load<!product_.keeps_left, 7>(right + b.panel_bytes, b.row_bytes);
        amx::product_bf16<2, 4, 7>();
        share(products / 2);
        if constexpr (two_left) {
          amx::product_bf16<3, 5, 7>();
          share(3);
        }
      }
    };
    // A constant number of steps is unrolled, so that every share is known at compile time.
    if constexpr (product_.steps > 0) {
#pragma GCC unroll 8
      for (int i = 0; i < product_.steps; ++i) step(i, product_.steps);
    } else {
      for (int i = 0; i < steps; ++i) step(i, steps);
    }
    each_sum([&](auto t) __attribute__((always_inline)) { amx::store<t>(c + t * panel_floats); });
  }

 private:
  /// The operand that is not kept bypasses the first-level cache, so that it does not evict the
  /// other.
  template <bool Keep, int T>
  KOKKOS_FORCEINLINE_FUNCTION static void load(const void* source, std::ptrdiff_t stride) {
    if constexpr (Keep) amx::load<T>(source, stride);
    else amx::load_past<T>(source, stride);
  }
};

/// Eight rows of A against two vectors of B: sixteen accumulators take two loads and eight
/// broadcasts a pair of depth, which sustains one product a cycle out of the second-level cache.
struct DotUnit : Products<DotUnit> {
  struct Session {};
  static constexpr std::int64_t section_bytes = std::int64_t{1} << 19;
  static constexpr int rows = 8;  ///< of A at a time

  using Pair [[gnu::may_alias]] = std::uint32_t;

  /// sum += (the pair `a`, broadcast) · (the pairs of b).
  KOKKOS_FORCEINLINE_FUNCTION static __m512 pair_product(__m512 sum, const Pair& a, __m512i b) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(a));
    return sum;
  }

  /// The products of four rows of A, a(0) to a(3), and two vectors of B. They are one statement on
  /// sums outside of an array: otherwise GCC 12 moves them from register to register between
  /// products.
  template <class Row>
  KOKKOS_FORCEINLINE_FUNCTION static void pair_products(__m512 (*sums)[2], const Row& a,
                                                        const __m512i (&b)[2]) {
    __m512 s00 = sums[0][0], s10 = sums[1][0], s20 = sums[2][0], s30 = sums[3][0];
    __m512 s01 = sums[0][1], s11 = sums[1][1], s21 = sums[2][1], s31 = sums[3][1];
    if constexpr (is_zen5) {
      __m512i a0, a1, a2, a3;  // broadcast once for two products
      asm("vpbroadcastd %14, %8\n\t"
          "vpbroadcastd %15, %9\n\t"
          "vpbroadcastd %16, %10\n\t"
          "vpbroadcastd %17, %11\n\t"
          "vdpbf16ps %8, %12, %0\n\t"
          "vdpbf16ps %8, %13, %1\n\t"
          "vdpbf16ps %9, %12, %2\n\t"
          "vdpbf16ps %9, %13, %3\n\t"
          "vdpbf16ps %10, %12, %4\n\t"
          "vdpbf16ps %10, %13, %5\n\t"
          "vdpbf16ps %11, %12, %6\n\t"
          "vdpbf16ps %11, %13, %7"
          : "+v"(s00), "+v"(s01), "+v"(s10), "+v"(s11), "+v"(s20), "+v"(s21), "+v"(s30), "+v"(s31),
            "=&v"(a0), "=&v"(a1), "=&v"(a2), "=&v"(a3)
          : "v"(b[0]), "v"(b[1]), "m"(a(0)), "m"(a(1)), "m"(a(2)), "m"(a(3)));
    } else {
      asm("vdpbf16ps %10%{1to16%}, %8, %0\n\t"
          "vdpbf16ps %10%{1to16%}, %9, %1\n\t"
          "vdpbf16ps %11%{1to16%}, %8, %2\n\t"
          "vdpbf16ps %11%{1to16%}, %9, %3\n\t"
          "vdpbf16ps %12%{1to16%}, %8, %4\n\t"
          "vdpbf16ps %12%{1to16%}, %9, %5\n\t"
          "vdpbf16ps %13%{1to16%}, %8, %6\n\t"
          "vdpbf16ps %13%{1to16%}, %9, %7"
          : "+v"(s00), "+v"(s01), "+v"(s10), "+v"(s11), "+v"(s20), "+v"(s21), "+v"(s30), "+v"(s31)
          : "v"(b[0]), "v"(b[1]), "m"(a(0)), "m"(a(1)), "m"(a(2)), "m"(a(3)));
    }
    sums[0][0] = s00, sums[1][0] = s10, sums[2][0] = s20, sums[3][0] = s30;
    sums[0][1] = s01, sums[1][1] = s11, sums[2][1] = s21, sums[3][1] = s31;
  }

  template <Product product_, class A, class B, class Work>
  KOKKOS_FORCEINLINE_FUNCTION static void product(const A& a, const B& b, int steps, bool resume,
                                                  float* c, Work&& beside) {
    constexpr int right = product_.right;
    constexpr int parts = product_.left * amx::rows / rows;
    const int count = product_.steps > 0 ? product_.steps : steps;
    for (int part = 0; part < parts; ++part) {
      const std::int64_t in_a =
          part * rows / amx::rows * a.panel_bytes + part * rows % amx::rows * a.row_bytes;
      float* target = c + part * rows * amx::rows;
      __m512 sums[rows][right];
#pragma GCC unroll 16
      for (int i = 0; i < rows * right; ++i) {
        const float* from = target + i % right * 2 * panel_floats + i / right * amx::rows;
        sums[i / right][i % right] = resume ? _mm512_load_ps(from) : _mm512_setzero_ps();
      }
      for (int i = 0; i < count; ++i) {
        if (part == 0) look_ahead(beside);
        const std::byte* pairs_of_a = reinterpret_cast<const std::byte*>(a(i)) + in_a;
        const bf16* pairs_of_b = b(i);
#pragma GCC unroll 4
        for (int p = 0; p < amx::rows; ++p) {
          __m512i pairs[right];
          for (int r = 0; r < right; ++r) {
            pairs[r] = _mm512_load_si512(pairs_of_b + r * panel_elements + p * depth);
          }
          const auto row = [&](int n) -> const Pair& {
            return *reinterpret_cast<const Pair*>(pairs_of_a + n * a.row_bytes + p * 4);
          };
          if constexpr (right == 2) {
            pair_products(sums, row, pairs);
            pair_products(
                sums + 4, [&](int n) -> const Pair& { return row(4 + n); }, pairs);
          } else {
#pragma GCC unroll 16
            for (int n = 0; n < rows; ++n) sums[n][0] = pair_product(sums[n][0], row(n), pairs[0]);
          }
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows * right; ++i) {
        _mm512_store_ps(target + i % right * 2 * panel_floats + i / right * amx::rows,
                        sums[i / right][i % right]);
      }
      beside.share(part, parts);
    }
  }
};

static_assert(Unit<AmxUnit> && Unit<DotUnit>);

/// Calls f.operator()<U>() for a unit, and returns its result.
template <class F>
decltype(auto) visit_unit(UnitName unit, const F& f) {
  if (unit == UnitName::amx) return f.template operator()<AmxUnit>();
  return f.template operator()<DotUnit>();
}

/// Bytes of packed operands for a pass over them with a unit.
inline std::int64_t section_bytes(UnitName unit) {
  return visit_unit(unit, []<Unit U>() { return U::section_bytes; });
}

#endif

}  // namespace katt::tile::bf16_panels
