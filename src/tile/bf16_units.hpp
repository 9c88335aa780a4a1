#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "tile/amx.hpp"
#include "tile/bf16_tiles.hpp"

/// The units of a CPU that multiply bf16 and sum in f32. All read the same packed tiles:
///
///   AmxUnit   TDPBF16PS, tile registers        16 × 16 × 32 products an instruction
///   DotUnit   VDPBF16PS of AVX512-BF16         16 × 2 an instruction; a row of a tile of B is a
///                                              vector, a pair of A is broadcast from memory
///
/// Both take subnormal operands as 0 and make subnormal sums 0. They add the products in different
/// orders, so that results of the two differ in the last bits; those of one do not, however the
/// work is cut. Kernels are templates of the unit; which of them a process may use is asked at run time.
namespace katt::tile::bf16_tiles {

/// The unit of this process: the fastest one that the CPU has and the kernel grants.
enum class UnitName : std::uint8_t { none, dot, amx };

inline UnitName unit() {
#if defined(KATT_BF16_TILES)
  if (cpu_features().amx_bf16) return UnitName::amx;
  if (cpu_features().avx512_bf16) return UnitName::dot;
#endif
  return UnitName::none;
}

/// Whether kernels on packed bf16 tiles can run in this process.
inline bool usable() { return unit() != UnitName::none; }

/// Why this process cannot use a unit; empty where it can.
inline std::string refusal(UnitName unit) {
#if defined(KATT_BF16_TILES)
  if (unit == UnitName::dot) {
    return cpu_features().avx512_bf16 ? "" : "this CPU has no AVX512-BF16";
  }
  return amx::refusal();
#else
  (void)unit;
  return "this build has no AVX-512 vectors";
#endif
}

/// "amx", "avx512_bf16", or "" where there is none.
inline const char* name_of(UnitName unit) {
  constexpr std::array names{"", "avx512_bf16", "amx"};
  return names[static_cast<std::size_t>(unit)];
}

#if defined(KATT_BF16_TILES)

/// C(2 × 2 tiles) = or += A·B over `steps` tiles of depth; C lies as [tile of B][tile of A]. a(i)
/// and b(i) are where the two tiles of step i begin. Between its instructions, beside.share(i, n)
/// does part i of n of other work. Steps > 0 fixes the number of steps at compile time.
template <class U>
concept Unit = requires(const bf16* (*tiles)(int), float* c) {
  typename U::Session;
  { U::section_bytes } -> std::convertible_to<std::int64_t>;
  U::template product_2x2<true, 0>(tiles, tiles, 1, c, nothing);
};

/// Two tiles of A and two of B feed four accumulators, one load for a product. A streams past the
/// first-level cache.
struct AmxUnit {
  using Session = amx::Session;
  /// What one pass over packed operands may take: half of the second-level cache of such CPUs.
  static constexpr std::int64_t section_bytes = std::int64_t{1} << 20;

  template <bool Accumulate, int Steps, class A, class B, class Beside>
  KOKKOS_FORCEINLINE_FUNCTION static void product_2x2(const A& a, const B& b, int steps, float* c,
                                                      Beside&& beside) {
    if constexpr (Accumulate) {
      amx::load<0>(c);
      amx::load<1>(c + tile_floats);
      amx::load<2>(c + 2 * tile_floats);
      amx::load<3>(c + 3 * tile_floats);
    } else {
      amx::zero<0>();
      amx::zero<1>();
      amx::zero<2>();
      amx::zero<3>();
    }
    const auto step = [&](int i, int count) __attribute__((always_inline)) {
      const bf16* left = a(i);
      const bf16* right = b(i);
      amx::load_past<4>(left);
      amx::load<6>(right);
      amx::product_bf16<0, 4, 6>();
      beside.share(i * 4, count * 4);
      amx::load_past<5>(left + tile_elements);
      amx::product_bf16<1, 5, 6>();
      beside.share(i * 4 + 1, count * 4);
      amx::load<7>(right + tile_elements);
      amx::product_bf16<2, 4, 7>();
      beside.share(i * 4 + 2, count * 4);
      amx::product_bf16<3, 5, 7>();
      beside.share(i * 4 + 3, count * 4);
    };
    // A constant number of steps is unrolled, so that every share is known at compile time.
    if constexpr (Steps > 0) {
#pragma GCC unroll 8
      for (int i = 0; i < Steps; ++i) step(i, Steps);
    } else {
      for (int i = 0; i < steps; ++i) step(i, steps);
    }
    amx::store<0>(c);
    amx::store<1>(c + tile_floats);
    amx::store<2>(c + 2 * tile_floats);
    amx::store<3>(c + 3 * tile_floats);
  }
};

/// Eight rows of A against two vectors of B: sixteen accumulators take two loads and eight
/// broadcasts a pair of depth, which sustains one product a cycle out of the second-level cache.
struct DotUnit {
  struct Session {};
  static constexpr std::int64_t section_bytes = std::int64_t{1} << 19;
  static constexpr int rows = 8;  ///< of A at a time

  /// sum += the pair at `a`, broadcast, · the pairs of b.
  KOKKOS_FORCEINLINE_FUNCTION static __m512 product(__m512 sum, const bf16* a, __m512i b) {
    using Pair [[gnu::may_alias]] = std::uint32_t;
    asm("vdpbf16ps %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(b), "m"(*reinterpret_cast<const Pair*>(a)));
    return sum;
  }

  template <bool Accumulate, int Steps, class A, class B, class Beside>
  KOKKOS_FORCEINLINE_FUNCTION static void product_2x2(const A& a, const B& b, int steps, float* c,
                                                      Beside&& beside) {
    constexpr int parts = 2 * amx::rows / rows;
    const int count = Steps > 0 ? Steps : steps;
    for (int part = 0; part < parts; ++part) {
      const int in_a = part * rows / amx::rows * tile_elements + part * rows % amx::rows * depth;
      float* first = c + part * rows * amx::rows;
      float* second = first + 2 * tile_floats;
      __m512 sums[rows][2];
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        sums[r][0] = Accumulate ? _mm512_load_ps(first + r * 16) : _mm512_setzero_ps();
        sums[r][1] = Accumulate ? _mm512_load_ps(second + r * 16) : _mm512_setzero_ps();
      }
      for (int i = 0; i < count; ++i) {
        const bf16* left = a(i) + in_a;
        const bf16* right = b(i);
#pragma GCC unroll 4
        for (int p = 0; p < amx::rows; ++p) {
          const __m512i low = _mm512_load_si512(right + p * depth);
          const __m512i high = _mm512_load_si512(right + tile_elements + p * depth);
#pragma GCC unroll 8
          for (int r = 0; r < rows; ++r) {
            sums[r][0] = product(sums[r][0], left + r * depth + 2 * p, low);
            sums[r][1] = product(sums[r][1], left + r * depth + 2 * p, high);
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        _mm512_store_ps(first + r * 16, sums[r][0]);
        _mm512_store_ps(second + r * 16, sums[r][1]);
      }
      beside.share(part, parts);
    }
  }
};

static_assert(Unit<AmxUnit> && Unit<DotUnit>);

/// Calls f.operator()<U>() for a unit, and returns what it returns.
template <class F>
decltype(auto) visit_unit(UnitName unit, const F& f) {
  if (unit == UnitName::amx) return f.template operator()<AmxUnit>();
  return f.template operator()<DotUnit>();
}

/// Bytes of packed operands that a pass over them may take with a unit.
inline std::int64_t section_bytes(UnitName unit) {
  return visit_unit(unit, []<Unit U>() { return U::section_bytes; });
}

#endif

}  // namespace katt::tile::bf16_tiles
