#pragma once

#include <cstdint>

#include <Kokkos_Core.hpp>

/// Stands before a loop whose arrays must become registers on a device.
#if defined(__CUDA_ARCH__)
#define KATT_UNROLL _Pragma("unroll")
#define KATT_UNROLL_4 _Pragma("unroll 4")
#define KATT_NO_UNROLL _Pragma("unroll 1")
#else
#define KATT_UNROLL_4
#define KATT_NO_UNROLL
#define KATT_UNROLL
#endif

/// The places of the operands of matrix instructions: the element that a lane holds, the address
/// that it gives, and the form of a tile in shared memory. Plain functions of integers: the kernels
/// use them on a device, the tests check them on the host. Source: PTX ISA 8.5, "Matrix fragments
/// for mma.m16n8k16 with floating point type", "ldmatrix", "Asynchronous warpgroup level matrix
/// shared memory layout".
namespace katt::tile {

/// Row and column of an element.
struct Position {
  unsigned row;
  unsigned column;
  friend bool operator==(const Position&, const Position&) = default;
};

inline constexpr unsigned warp_size = 32;

/// mma.m16n8k16 and, for the warp's own 16 rows, wgmma.m64nNk16: element i (0 … 3) of a lane's
/// accumulators, in a block of 16 × 8.
KOKKOS_INLINE_FUNCTION constexpr Position accumulator_position(unsigned lane, unsigned i) {
  return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

/// The columns of a product that WgmmaBlock::wgmma() knows.
constexpr bool wgmma_takes(int columns) {
  for (const int known : {32, 64, 80, 96, 128, 176, 192, 256}) {
    if (columns == known) return true;
  }
  return false;
}

/// ldmatrix.x4 reads four matrices of 8 × 8; lane l gives the address of row l mod 8 of matrix
/// l / 8. These three are the first elements of those rows in a block of 16 × 16, so that the four
/// registers are:
/// the operand A (16 × 16), from a tile that holds A by rows;
KOKKOS_INLINE_FUNCTION constexpr Position a_source(unsigned lane) {
  return {lane % 16, lane / 16 * 8};
}
/// two operands B (16 × 8, registers 0, 1 and 2, 3), from a tile whose rows are the columns of B
/// (K in Q·Kᵀ);
KOKKOS_INLINE_FUNCTION constexpr Position b_source_by_columns(unsigned lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8};
}
/// the same, with ldmatrix.trans, from a tile whose rows are the rows of B (V in P·V).
KOKKOS_INLINE_FUNCTION constexpr Position b_source_by_rows(unsigned lane) {
  return {lane % 16, lane / 16 * 8};
}

/// 16-bit elements of a stripe: a row of it is 128 bytes.
inline constexpr unsigned stripe_columns = 64;

/// A tile of 16-bit elements in shared memory: stripes of 64 columns one after another, each `rows`
/// rows of 128 bytes; row r keeps its 16-byte chunk c at place c xor (r mod 8), so that eight rows
/// of one chunk lie in eight different groups of banks. It is the 128-byte swizzle of wgmma and of
/// TMA, provided that the tile begins at a multiple of 1024 bytes. Returns the byte at which
/// element (row, column) begins. Unsigned: divisions by powers of two are shifts.
KOKKOS_INLINE_FUNCTION constexpr unsigned swizzled(unsigned rows, unsigned row, unsigned column) {
  const unsigned chunk = column % stripe_columns / 8;
  return column / stripe_columns * rows * 128 + row * 128 + (chunk ^ (row % 8)) * 16 +
         column % 8 * 2;
}

/// The same for a lane's row of ldmatrix, from which the block of 16 × 16 that begins at row j and
/// column d (multiples of 16) follows by one xor and an addition of constants.
class SwizzledLane {
 public:
  /// `source`: a_source(lane) or its kind, in a tile that begins at byte `tile`.
  KOKKOS_INLINE_FUNCTION constexpr SwizzledLane(unsigned tile, Position source)
      : tile_(tile), first_(swizzled(0, source.row, source.column)) {}

  KOKKOS_INLINE_FUNCTION constexpr unsigned at(unsigned rows, unsigned j, unsigned d) const {
    return tile_ + (first_ ^ (d % stripe_columns * 2)) + d / stripe_columns * rows * 128 + j * 128;
  }

 private:
  unsigned tile_;
  unsigned first_;
};

/// The matrix descriptor of wgmma for a swizzled() tile that begins at a multiple of 1024 bytes;
/// `address` (below 2^18) is the byte in shared memory of its first element, `leading` and `stride`
/// are the byte offsets that the two functions below explain. Bits 0–13, 16–29 and 32–45 hold them
/// divided by 16, bits 62–63 the swizzle (1: 128 bytes). A sum with n is the descriptor of the
/// operand 16·n bytes on.
/// Source: PTX ISA, "Matrix Descriptor Format".
KOKKOS_INLINE_FUNCTION constexpr std::uint64_t matrix_descriptor(unsigned address, unsigned leading,
                                                                 unsigned stride) {
  return static_cast<std::uint64_t>(address / 16) | static_cast<std::uint64_t>(leading / 16) << 16 |
         static_cast<std::uint64_t>(stride / 16) << 32 | std::uint64_t{1} << 62;
}

/// An operand whose rows in the tile run along the inner dimension of the product (Q and K in
/// Q·Kᵀ), from row j and column d (multiples of 8 and 16) on: groups of eight rows are 1024 bytes
/// apart; within a row the hardware applies the swizzle to the column of the address.
KOKKOS_INLINE_FUNCTION constexpr std::uint64_t row_major_descriptor(unsigned tile, unsigned rows,
                                                                    unsigned j, unsigned d) {
  return matrix_descriptor(tile + j * 128, 16, 1024) +
         (d / stripe_columns * rows * 128 + d % stripe_columns * 2) / 16;
}

/// An operand whose rows in the tile run across the inner dimension (V in P·V: its keys are the
/// inner dimension), from row j and column d (multiples of 16 and 64) on: stripes of 64 columns are
/// rows · 128 bytes apart, groups of eight rows 1024.
KOKKOS_INLINE_FUNCTION constexpr std::uint64_t column_major_descriptor(unsigned tile, unsigned rows,
                                                                       unsigned j, unsigned d) {
  return matrix_descriptor(tile, rows * 128, 1024) + (d / stripe_columns * rows + j) * 8;
}

}  // namespace katt::tile
