#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tile/amx.hpp"
#include "tile/bf16_panels.hpp"

/// The units of a CPU that multiply bf16 and sum in f32. All read the same packed panels:
///
///   AmxUnit   TDPBF16PS, tile registers        16 × 16 × 32 products an instruction
///   DotUnit   VDPBF16PS of AVX512-BF16         16 × 2 an instruction; a row of a panel of B is a
///                                              vector, a pair of A is broadcast from memory
///
/// Both take subnormal operands as 0 and make subnormal sums 0. They add the products in different
/// orders, so that results of the two differ in the last bits; those of one do not, however the
/// work is cut. Kernels are templates of the unit; which one a process uses is asked once, at run
/// time.
namespace katt::tile::bf16_panels {

/// The unit of this process: the fastest one that the CPU has and the kernel grants.
enum class UnitName : std::uint8_t { none, dot, amx };

inline UnitName unit() {
#if defined(KATT_BF16_PANELS)
  if (cpu_features().amx_bf16) return UnitName::amx;
  if (cpu_features().avx512_bf16) return UnitName::dot;
#endif
  return UnitName::none;
}

/// Whether kernels on packed bf16 panels can run in this process.
inline bool usable() { return unit() != UnitName::none; }

/// "amx", "avx512_bf16", or "" where there is none.
inline const char* unit_name() {
  constexpr std::array names{"", "avx512_bf16", "amx"};
  return names[static_cast<std::size_t>(unit())];
}

#if defined(KATT_BF16_PANELS)

/// A product as a unit computes it: C(left × right panels) = (resume ? C : 0) + A·B over steps of 32
/// of depth. C lies as [2 panels of B][2 panels of A].
struct Product {
  int left = 2, right = 2;  ///< panels of A and of B: 1 or 2
  int steps = 0;            ///< fixed at compile time where > 0
  bool keeps_left = false;  ///< the first-level cache keeps A, and B streams past it; else B
  bool keeps_sums = true;   ///< and C
};

/// An operand that is packed: at(i) is where the panels of step i begin, one after the other.
template <class At>
struct Packed {
  static constexpr std::int64_t row_bytes = amx::row_bytes, panel_bytes = amx::panel_bytes;
  At at;
  KOKKOS_FORCEINLINE_FUNCTION const bf16* operator()(int i) const { return at(i); }
};

/// Work beside the products: share(i, n) does part i of n between instructions. Where there is an
/// ahead(), it is called once a step.
template <class B>
concept Beside = requires(B& beside) {
  beside.share(0, 1);
};

template <class B>
KOKKOS_FORCEINLINE_FUNCTION void look_ahead(B& beside) {
  if constexpr (requires { beside.ahead(); }) beside.ahead();
}

/// U::product<Product>(a, b, steps, resume, c, beside) multiplies. Operands tell where the first
/// panel of a step begins, how far the rows of a panel are apart, and the panels; the rows of B, which
/// are pairs of rows, lie together.
template <class U>
concept Unit = requires(const bf16* (*panels)(int), float* c) {
  typename U::Session;
  { U::section_bytes } -> std::convertible_to<std::int64_t>;
  U::template product_2x2<true, 0>(panels, panels, 1, c, nothing);
};

/// What units have in common.
template <class U>
struct Products {
  /// C = or += A·B over `steps` steps of two panels each; a(i) and b(i) are where those of step i
  /// begin. Steps > 0 fixes the number of steps.
  template <bool Accumulate, int Steps, class A, class B, Beside Work>
  KOKKOS_FORCEINLINE_FUNCTION static void product_2x2(const A& a, const B& b, int steps, float* c,
                                                      Work&& beside) {
    U::template product<Product{.steps = Steps}>(Packed<A>{a}, Packed<B>{b}, steps, Accumulate, c,
                                                 beside);
  }
};

/// Two panels of A and two of B feed four accumulators, one load for a product.
struct AmxUnit : Products<AmxUnit> {
  using Session = amx::Session;
  /// What one pass over packed operands may take: half of the second-level cache of such CPUs.
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
  /// What is not kept goes past the first-level cache, from which it would drive out what is.
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

  /// sum += the pair at `a`, broadcast, · the pairs of b.
  KOKKOS_FORCEINLINE_FUNCTION static __m512 pair_product(__m512 sum, const std::byte* a,
                                                         __m512i b) {
    using Pair [[gnu::may_alias]] = std::uint32_t;
    asm("vdpbf16ps %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(b), "m"(*reinterpret_cast<const Pair*>(a)));
    return sum;
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
#pragma GCC unroll 16
          for (int n = 0; n < rows * right; ++n) {
            __m512& sum = sums[n / right][n % right];
            sum = pair_product(sum, pairs_of_a + n / right * a.row_bytes + p * 4, pairs[n % right]);
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

/// Calls f.operator()<U>() for the unit of this process; usable() must hold.
template <class F>
void visit_unit(const F& f) {
  if (unit() == UnitName::amx) f.template operator()<AmxUnit>();
  else f.template operator()<DotUnit>();
}

/// section_bytes of the unit of this process.
inline std::int64_t section_bytes() {
  return unit() == UnitName::amx ? AmxUnit::section_bytes : DotUnit::section_bytes;
}

#endif

}  // namespace katt::tile::bf16_panels
