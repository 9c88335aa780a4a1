#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

/// Before a loop whose arrays are to be registers on a device.
#if defined(__CUDA_ARCH__)
#define KATT_UNROLL _Pragma("unroll")
#define KATT_NO_UNROLL _Pragma("unroll 1")
#else
#define KATT_NO_UNROLL
#define KATT_UNROLL
#endif

/// Where matrix instructions keep their operands: which element a lane holds, which address it
/// gives, and how a tile lies in shared memory. Plain functions of integers: the kernels use them
/// on a device, the tests check them on the host.
/// Source: PTX ISA 8.5, "Matrix fragments for mma.m16n8k16 with floating point type", "ldmatrix",
/// "Asynchronous warpgroup level matrix shared memory layout".
namespace katt::tile {

/// Row and column of an element.
struct Position {
  int row;
  int column;
  friend bool operator==(const Position&, const Position&) = default;
};

inline constexpr int warp_size = 32;

/// mma.m16n8k16 and, for the warp's own 16 rows, wgmma.m64nNk16: element i (0 … 3) of a lane's
/// accumulators, in a block of 16 × 8.
KOKKOS_INLINE_FUNCTION constexpr Position accumulator_position(int lane, int i) {
  return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

/// ldmatrix.x4 reads four matrices of 8 × 8; lane l gives the address of row l mod 8 of matrix
/// l / 8. These three are the first elements of those rows in a block of 16 × 16, so that the four
/// registers are:
/// the operand A (16 × 16), from a tile that holds A by rows;
KOKKOS_INLINE_FUNCTION constexpr Position a_source(int lane) { return {lane % 16, lane / 16 * 8}; }
/// two operands B (16 × 8, registers 0, 1 and 2, 3), from a tile whose rows are the columns of B
/// (K in Q·Kᵀ);
KOKKOS_INLINE_FUNCTION constexpr Position b_source_by_columns(int lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8};
}
/// the same, with ldmatrix.trans, from a tile whose rows are the rows of B (V in P·V).
KOKKOS_INLINE_FUNCTION constexpr Position b_source_by_rows(int lane) {
  return {lane % 16, lane / 16 * 8};
}

/// 16-bit elements of a panel: a row of it is 128 bytes.
inline constexpr int panel_columns = 64;

/// A tile of 16-bit elements in shared memory: panels of 64 columns one after another, each `rows`
/// rows of 128 bytes; row r keeps its 16-byte chunk c at place c xor (r mod 8), so that eight rows
/// of one chunk lie in eight different groups of banks. It is the 128-byte swizzle of wgmma and of
/// TMA, provided that the tile begins at a multiple of 1024 bytes. In elements.
KOKKOS_INLINE_FUNCTION constexpr int swizzled(int rows, int row, int column) {
  const int chunk = column % panel_columns / 8;
  return column / panel_columns * rows * panel_columns + row * panel_columns +
         (chunk ^ (row % 8)) * 8 + column % 8;
}

}  // namespace katt::tile
