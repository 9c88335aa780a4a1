#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include "core/views.hpp"
#include "ops/ternary_linear/ternary_linear.hpp"
#include "ops/ternary_linear/ternary_linear_kernels.hpp"
#include "tile/bf16/amx.hpp"
#include "tile/bf16/transpose.hpp"
#include "tile/extents.hpp"
#include "tile/rows/elementwise.hpp"
#include "tile/vec/vec.hpp"

/// The forward product of many tokens on AMX tiles. For 32 rows o of the weight, up to 256 tokens t and one
/// section of the depth after the other:
///
///   C(o, t) += d(o, section) · x_q(t, section)ᵀ          d = w + 1, unpacked once for all tokens
///   out(t, o) = (C(o, t) − Σ x_q(t)) · s_w(o) / s_x(t)   the bits of PackedForward
namespace katt::ternary_linear::impl {

#if defined(KATT_TERNARY_AVX512) && defined(KATT_BF16_PANELS)
#define KATT_TERNARY_TILES

namespace amx = tile::amx;

/// C += A·B of 16 × 64 × 16 bytes, unsigned times signed, in 32-bit sums, for tile registers C, A and B: row p
/// of B holds, for every column n, the elements (4p, n) to (4p + 3, n) side by side.
template <int C, int A, int B>
KOKKOS_FORCEINLINE_FUNCTION void multiply_bytes() {
  asm volatile("tdpbusd %%tmm%c0, %%tmm%c1, %%tmm%c2" ::"i"(B), "i"(A), "i"(C));
}

/// Tokens as the tile registers read them: a panel (16 tokens, 64 values) holds, for four values at a time,
/// those of all its tokens side by side. Panels of one group of 16 tokens lie in the order of their values.
struct TokenPanels {
  std::int64_t groups;  ///< of 16 tokens
  std::int64_t steps;   ///< panels of a group
  std::byte* panels;

  TokenPanels(std::int64_t tokens, std::int64_t stride, void* memory)
      : groups(divide_up(tokens, amx::rows)),
        steps(stride / amx::row_bytes),
        panels(static_cast<std::byte*>(memory)) {}
  std::size_t bytes() const { return static_cast<std::size_t>(groups * steps * amx::panel_bytes); }
  std::byte* at(std::int64_t group, std::int64_t step) const {
    return panels + (group * steps + step) * amx::panel_bytes;
  }
};

/// Fills the panels of a group; tokens beyond the last one are 0.
struct PackTokens {
  QuantisedTokens tokens;
  std::int64_t count;
  TokenPanels out;

  void operator()(std::int64_t group) const {
    using Vec = tile::VecOf<Host>;
    const std::int64_t first = group * amx::rows;
    const auto live = static_cast<int>(std::min<std::int64_t>(amx::rows, count - first));
    for (std::int64_t step = 0; step < out.steps; ++step) {
      const std::int8_t* from = tokens.values + first * tokens.stride + step * amx::row_bytes;
      Vec rows[amx::rows];
      for (int n = 0; n < amx::rows; ++n) {
        rows[n] = n < live ? Vec(_mm512_loadu_ps(from + n * tokens.stride)) : Vec(0.0F);
      }
      tile::transpose(rows);
      std::byte* target = out.at(group, step);
      for (int p = 0; p < amx::rows; ++p) {
        _mm512_store_ps(target + p * amx::row_bytes, static_cast<__m512>(rows[p]));
      }
    }
  }
};

/// 32 rows of the weight and up to `item_groups` groups of tokens.
template <class T, PackFormat Format>
struct TileForward {
  static constexpr int digits = digits_per_byte(Format);
  /// Packed blocks of a section, whose digits take 64 or 80 KiB of the second-level cache.
  static constexpr int section_blocks = 8;
  static constexpr int item_rows = 2 * amx::rows;
  /// Their sums take 32 KiB.
  static constexpr int item_groups = 16;
  static constexpr int sums_of_tile = amx::panel_bytes / 4;

  const std::uint8_t* rows;
  const float* weight_scales;
  std::int64_t row_bytes;
  std::int64_t row_items;  ///< items side by side
  QuantisedTokens tokens;
  TokenPanels panels;
  StridedView<T, 2, Kokkos::HostSpace> out;

  void operator()(std::int64_t item) const {
    alignas(64) std::byte weights[section_blocks * digits * 2 * amx::panel_bytes];
    alignas(64) std::int32_t sums[item_groups * 2 * sums_of_tile];
    const amx::Session session;
    const std::int64_t first_row = item % row_items * item_rows;
    const std::int64_t first_group = item / row_items * item_groups;
    const std::int64_t end = std::min<std::int64_t>(first_group + item_groups, panels.groups);
    const std::int64_t blocks = row_bytes / block_bytes;
    for (std::int64_t block = 0; block < blocks; block += section_blocks) {
      const std::int64_t count = std::min<std::int64_t>(section_blocks, blocks - block);
      unpack(first_row, block, count, weights);
      for (std::int64_t group = first_group; group < end; group += 2) {
        std::int32_t* c = sums + (group - first_group) * 2 * sums_of_tile;
        const bool is_pair = group + 1 < end;
        const auto multiply = is_pair ? &TileForward::multiply<2> : &TileForward::multiply<1>;
        (this->*multiply)(weights, group, block * digits, count * digits, c);
        if (block + count < blocks) continue;
        finish(first_row, group, c);
        if (is_pair) finish(first_row, group + 1, c + 2 * sums_of_tile);
      }
    }
  }

 private:
  /// The digits of some blocks of 32 rows, those beyond the last row copies of it: two panels a step.
  void unpack(std::int64_t first_row, std::int64_t block, std::int64_t count,
              std::byte* weights) const {
    const auto last = static_cast<std::int64_t>(out.extent(1)) - 1;
    for (int r = 0; r < item_rows; ++r) {
      const std::uint8_t* row = rows + std::min(first_row + r, last) * row_bytes;
      std::byte* target = weights + r * amx::row_bytes;  // row r % 16 of panel r / 16
      for (std::int64_t b = 0; b < count; ++b) {
        Digits<SixtyFourBytes, Format> rest(row + (block + b) * block_bytes);
#pragma GCC unroll 5
        for (int digit = 0; digit < digits; ++digit, target += 2 * amx::panel_bytes) {
          _mm512_store_si512(target, rest.next());
        }
      }
    }
  }

  /// C += d · x_qᵀ of two panels of weights and Groups of tokens, from 0 in the first step of all.
  template <int Groups>
  void multiply(const std::byte* weights, std::int64_t group, std::int64_t first_step,
                std::int64_t count, std::int32_t* c) const {
    const auto each_sum = [&](const auto& f) __attribute__((always_inline)) {
      f(std::integral_constant<int, 0>{});
      f(std::integral_constant<int, 1>{});
      if constexpr (Groups == 2) {
        f(std::integral_constant<int, 2>{});
        f(std::integral_constant<int, 3>{});
      }
    };
    each_sum([&](auto t) __attribute__((always_inline)) {
      if (first_step == 0) amx::zero<t>();
      else amx::load<t>(c + t * sums_of_tile);
    });
    const std::byte* left = panels.at(group, first_step);
    const std::byte* right = panels.at(group + Groups - 1, first_step);
    for (std::int64_t step = 0; step < count; ++step) {
      amx::load<4>(weights);
      amx::load<6>(left);
      multiply_bytes<0, 4, 6>();
      amx::load<5>(weights + amx::panel_bytes);
      multiply_bytes<1, 5, 6>();
      if constexpr (Groups == 2) {
        amx::load<7>(right);
        multiply_bytes<2, 4, 7>();
        multiply_bytes<3, 5, 7>();
      }
      weights += 2 * amx::panel_bytes;
      left += amx::panel_bytes;
      right += amx::panel_bytes;
    }
    each_sum([&](auto t) __attribute__((always_inline)) { amx::store<t>(c + t * sums_of_tile); });
  }

  /// Writes out of one group of tokens.
  void finish(std::int64_t first_row, std::int64_t group, const std::int32_t* c) const {
    using Vec = tile::VecOf<Host>;
    const auto row_count = static_cast<std::int64_t>(out.extent(1));
    const std::int64_t token = group * amx::rows;
    const std::int64_t count =
        std::min<std::int64_t>(amx::rows, static_cast<std::int64_t>(out.extent(0)) - token);
    const __m512i sum = _mm512_loadu_si512(tokens.sum + token);
    const auto inverse = tile::load<Vec>(tokens.inverse + token);
    for (int half = 0; half < 2; ++half, c += sums_of_tile) {
      const std::int64_t row = first_row + half * amx::rows;
      const auto live = static_cast<int>(std::min<std::int64_t>(amx::rows, row_count - row));
      if (live <= 0) return;
      Vec values[amx::rows];
      for (int r = 0; r < amx::rows; ++r) {
        const __m512i products = _mm512_load_si512(c + r * amx::rows);
        const Vec exact(_mm512_cvtepi32_ps(_mm512_sub_epi32(products, sum)));
        values[r] = Vec(exact * Vec(r < live ? weight_scales[row + r] : 0.0F)) * inverse;
      }
      tile::transpose(values);
      for (std::int64_t t = 0; t < count; ++t) {
        T* target = &out(token + t, row);
        if (live == amx::rows) tile::store(target, values[t]);
        else tile::store(target, values[t], tile::PartialVector{live});
      }
    }
  }
};

/// True where this process multiplies so many tokens on tiles: fewer leave most of a tile empty.
inline bool uses_tiles(std::int64_t tokens) { return tokens >= 12 && cpu_features().amx_int8; }

template <class T, PackFormat Format>
void tile_forward(const Host& exec, const ForwardArgs& args, const QuantisedTokens& tokens,
                  void* memory) {
  using Items =
      Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int64_t>>;
  const char* label = "katt::ternary_linear::tile_forward";
  const TokenPanels panels(args.tokens(), tokens.stride, memory);
  Kokkos::parallel_for(label, Items(exec, 0, panels.groups, Kokkos::ChunkSize(1)),
                       PackTokens{tokens, args.tokens(), panels});
  using Functor = TileForward<T, Format>;
  const std::int64_t row_items = divide_up(args.out_features(), Functor::item_rows);
  const std::int64_t items = row_items * divide_up(panels.groups, Functor::item_groups);
  Kokkos::parallel_for(label, Items(exec, 0, items, Kokkos::ChunkSize(1)),
                       Functor{args.packed.rows(), args.packed.scales(), args.packed.row_bytes(),
                               row_items, tokens, panels, args.out.view<T, Kokkos::HostSpace>()});
}

#endif

}  // namespace katt::ternary_linear::impl
