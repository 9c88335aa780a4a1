#pragma once

#include <cstdint>

/// Where the PTX ISA puts the elements of tensor-core operands, element by element from its
/// figures: the inverse of the index arithmetic of the kernels, which it tests. For the emulator of
/// tensor-core instructions (warp_emulator.hpp) and for the device in software (tests/softcuda).
namespace katt::testing {

struct Element {
  int row, column;
};

/// Element i (0..7) of A (mma.m16n8k16, 16 × 16; wgmma.m64nNk16 with A in registers, 64 × 16) that
/// a thread of the warp or warpgroup holds: register i / 2, lower half first.
constexpr Element a_element(int thread, int i) {
  return {thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, thread % 4 * 2 + i % 2 + i / 4 * 8};
}

/// Element i (0..3) of B (mma.m16n8k16, 16 × 8): register i / 2, lower half first.
constexpr Element b_element(int lane, int i) {
  return {lane % 4 * 2 + i % 2 + i / 2 * 8, lane / 4};
}

/// The element of C and D (mma.m16n8k16, 16 × 8; wgmma.m64nNk16, 64 × N) in register i.
constexpr Element d_element(int thread, int i) {
  return {thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, i / 4 * 8 + thread % 4 * 2 + i % 2};
}

/// Element i (0, 1) of an 8 × 8 matrix of ldmatrix and stmatrix that a lane holds.
constexpr Element matrix_element(int lane, int i) { return {lane / 4, lane % 4 * 2 + i}; }

/// A matrix descriptor of wgmma: "Shared Memory Matrix Layout". The unit of an address is a chunk
/// of 16 bytes, eight elements along the contiguous dimension.
struct MatrixDescriptor {
  std::uint64_t start, leading, stride;  ///< bytes
  int swizzle;                           ///< rows of 16 << swizzle bytes; 0: no swizzle
  bool has_base_offset;

  explicit constexpr MatrixDescriptor(std::uint64_t bits)
      : start((bits & 0x3FFF) * 16),
        leading((bits >> 16 & 0x3FFF) * 16),
        stride((bits >> 32 & 0x3FFF) * 16),
        swizzle(static_cast<int>((4 - (bits >> 62)) % 4)),
        has_base_offset((bits >> 49 & 7) != 0) {}

  /// The byte at which a chunk of a line begins. K-major: a line is a row of A or a column of B,
  /// and its chunks run along k. MN-major (transposed): a line is a k, and its chunks run along the
  /// rows of A or columns of B.
  constexpr std::uint64_t address(std::uint64_t line, std::uint64_t chunk, bool transposed) const {
    const std::uint64_t width = std::uint64_t{1} << swizzle;  // chunks in a line of an atom
    const std::uint64_t line_in_atom = line % 8 * 16 * width;
    if (swizzle == 0) {
      return start + line_in_atom + line / 8 * (transposed ? leading : stride) +
             chunk * (transposed ? stride : leading);
    }
    const std::uint64_t next_atom = transposed ? leading : 16 * width;
    const std::uint64_t at =
        start + line_in_atom + line / 8 * stride + chunk % width * 16 + chunk / width * next_atom;
    return at ^ (at >> 7 & (width - 1)) << 4;
  }
};

}  // namespace katt::testing
