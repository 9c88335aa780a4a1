#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.hpp"
#include "tile/bf16_units.hpp"

/// The innermost loop of gemm/bf16.cpp for every unit that multiplies bf16 tiles.
#if defined(KATT_BF16_TILES)
namespace katt::linear::impl {

namespace bf16_tiles = tile::bf16_tiles;

/// A factor of the product: `extent` indices i over k steps.
struct Factor {
  const bf16* data;
  std::int64_t stride;
  bool along;  ///< rows run along k: element (i, k) at i · stride + k, else at k · stride + i
  std::int64_t extent, k;

  const bf16* at(std::int64_t index, std::int64_t step) const {
    return data + (along ? index * stride + step : step * stride + index);
  }
};

/// What a multiplication asks for ahead of its use: so many lines a step.
struct Ahead {
  const std::byte* from = nullptr;
  std::int64_t line_bytes = 0, step_bytes = 0;  ///< distances of lines and of steps
  int lines = 0;

  void operator()() {
    for (int i = 0; i < lines; ++i) __builtin_prefetch(from + i * line_bytes, 0, 2);
    from += step_bytes;
  }
};

/// Where the tiles of a factor lie: 32 steps of k are `step_bytes` apart.
struct TileWalk {
  const std::byte* at;
  std::int64_t row_bytes = bf16_tiles::row_bytes, tile_bytes = bf16_tiles::tile_bytes,
               step_bytes = 0;

  static TileWalk packed(const std::byte* at, int tiles) {
    return {.at = at, .step_bytes = tiles * bf16_tiles::tile_bytes};
  }
  /// Of a left factor whose rows run along k.
  static TileWalk unpacked(const Factor& factor, std::int64_t index) {
    const std::int64_t row_bytes = factor.stride * 2;
    return {.at = reinterpret_cast<const std::byte*>(factor.at(index, 0)),
            .row_bytes = row_bytes,
            .tile_bytes = 16 * row_bytes,
            .step_bytes = bf16_tiles::row_bytes};
  }
};

/// sums(l, r) = (resume ? sums(l, r) : 0) + Σ left(l) · right(r), tiles of 1 KiB at 2 l + r, over
/// `steps` steps of 32. `ahead` and `too` are asked once a step.
template <bf16_tiles::Unit U>
struct Multiply;

template <>
struct Multiply<bf16_tiles::AmxUnit> {
  /// Reads a register past the first-level cache, from which it would drive out what stays there.
  template <bool Past, int T>
  static void load_tile(const void* from, std::ptrdiff_t stride) {
    if constexpr (Past) tile::amx::load_past<T>(from, stride);
    else tile::amx::load<T>(from, stride);
  }

  /// One factor stays in the first-level cache, the other one and the sums go past it.
  template <int Left, int Right, bool KeepLeft>
  static void run(TileWalk left, TileWalk right, std::int64_t steps, bool resume, float* sums,
                  Ahead ahead, Ahead too) {
    namespace amx = tile::amx;
    const auto each = [&](const auto& f) {
      f(std::integral_constant<int, 0>{});
      if constexpr (Right > 1) f(std::integral_constant<int, 1>{});
      if constexpr (Left > 1) f(std::integral_constant<int, 2>{});
      if constexpr (Left > 1 && Right > 1) f(std::integral_constant<int, 3>{});
    };
    each([&](auto c) {
      if (resume) amx::load_past<c>(sums + c * bf16_tiles::tile_floats);
      else amx::zero<c>();
    });
    for (std::int64_t t = 0; t < steps; ++t) {
      ahead();
      too();
      load_tile<KeepLeft, 6>(right.at, right.row_bytes);
      load_tile<!KeepLeft, 4>(left.at, left.row_bytes);
      amx::product_bf16<0, 4, 6>();
      if constexpr (Left > 1) {
        load_tile<!KeepLeft, 5>(left.at + left.tile_bytes, left.row_bytes);
        amx::product_bf16<2, 5, 6>();
      }
      if constexpr (Right > 1) {
        load_tile<KeepLeft, 7>(right.at + right.tile_bytes, right.row_bytes);
        amx::product_bf16<1, 4, 7>();
        if constexpr (Left > 1) amx::product_bf16<3, 5, 7>();
      }
      left.at += left.step_bytes;
      right.at += right.step_bytes;
    }
    each([&](auto c) { amx::store<c>(sums + c * bf16_tiles::tile_floats); });
  }
};

template <>
struct Multiply<bf16_tiles::DotUnit> {
  using Dot = bf16_tiles::DotUnit;

  /// Eight rows of the left factor at a time; what is asked for ahead, with the first ones.
  template <int Left, int Right, bool KeepLeft>
  static void run(const TileWalk& left, const TileWalk& right, std::int64_t steps, bool resume,
                  float* sums, Ahead ahead, Ahead too) {
    constexpr int rows = Dot::rows;
    constexpr int lanes = bf16_tiles::rows;
    for (int row = 0; row < Left * lanes; row += rows) {
      float* target = sums + row / lanes * 2 * bf16_tiles::tile_floats + row % lanes * lanes;
      __m512 sum[rows][Right];
#pragma GCC unroll 16
      for (int i = 0; i < rows * Right; ++i) {
        const float* from = target + i % Right * bf16_tiles::tile_floats + i / Right * lanes;
        sum[i / Right][i % Right] = resume ? _mm512_load_ps(from) : _mm512_setzero_ps();
      }
      const std::byte* a = left.at + row / lanes * left.tile_bytes + row % lanes * left.row_bytes;
      const std::byte* b = right.at;
      for (std::int64_t t = 0; t < steps; ++t, a += left.step_bytes, b += right.step_bytes) {
        if (row == 0) {
          ahead();
          too();
        }
#pragma GCC unroll 2
        for (int p = 0; p < lanes; ++p) {
          __m512i pairs[Right];
          for (int r = 0; r < Right; ++r) {
            pairs[r] = _mm512_load_si512(b + r * bf16_tiles::tile_bytes + p * 64);
          }
#pragma GCC unroll 16
          for (int i = 0; i < rows * Right; ++i) {
            const std::byte* pair = a + i / Right * left.row_bytes + p * 4;
            sum[i / Right][i % Right] = Dot::product(
                sum[i / Right][i % Right], reinterpret_cast<const bf16*>(pair), pairs[i % Right]);
          }
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < rows * Right; ++i) {
        _mm512_store_ps(target + i % Right * bf16_tiles::tile_floats + i / Right * lanes,
                        sum[i / Right][i % Right]);
      }
    }
  }
};

}  // namespace katt::linear::impl
#endif
