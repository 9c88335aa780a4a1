#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tile/cuda/fragments.hpp"

// Properties that the emulator of warps does not check while a kernel runs: the maps are one to
// one, and the bits of a descriptor stand where the PTX ISA says.
namespace katt::tile {
namespace {

TEST(Fragments, AccumulatorsCoverTheirBlockOnce) {
  std::set<std::pair<unsigned, unsigned>> seen;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    for (unsigned i = 0; i < 4; ++i) {
      const Position at = accumulator_position(lane, i);
      EXPECT_LT(at.row, 16U);
      EXPECT_LT(at.column, 8U);
      seen.insert({at.row, at.column});
    }
  }
  EXPECT_EQ(seen.size(), 128U);
}

TEST(Fragments, SourcesOfLdmatrixCoverTheirBlockOnce) {
  using Source = Position (*)(unsigned);
  for (const Source source :
       {Source(a_source), Source(b_source_by_columns), Source(b_source_by_rows)}) {
    std::set<std::pair<unsigned, unsigned>> seen;
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      const Position at = source(lane);
      EXPECT_EQ(at.column % 8, 0U);
      seen.insert({at.row, at.column});
    }
    EXPECT_EQ(seen.size(), 32U);
  }
}

TEST(Swizzle, KeepsChunksWholeAndUsesEveryByteOnce) {
  constexpr unsigned rows = 48;
  constexpr unsigned columns = 128;
  std::set<unsigned> seen;
  for (unsigned row = 0; row < rows; ++row) {
    for (unsigned column = 0; column < columns; ++column) {
      const unsigned byte = swizzled(rows, row, column);
      EXPECT_LT(byte, rows * columns * 2);
      EXPECT_EQ(byte, swizzled(rows, row, column / 8 * 8) + column % 8 * 2);
      seen.insert(byte);
    }
  }
  EXPECT_EQ(seen.size(), rows * columns);
}

TEST(Swizzle, EightRowsOfAColumnLieInEightGroupsOfBanks) {
  for (unsigned column = 0; column < 128; column += 8) {
    for (unsigned first = 0; first < 64; first += 8) {
      std::set<unsigned> groups;
      for (unsigned row = first; row < first + 8; ++row) {
        groups.insert(swizzled(64, row, column) / 16 % 8);
      }
      EXPECT_EQ(groups.size(), 8U);
    }
  }
}

TEST(Swizzle, ALaneReachesEveryBlockByOneXor) {
  constexpr unsigned rows = 64;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    for (const Position source : {a_source(lane), b_source_by_columns(lane)}) {
      const SwizzledLane place(4096, source);
      for (unsigned j = 0; j < rows; j += 16) {
        for (unsigned d = 0; d < 256; d += 16) {
          EXPECT_EQ(place.at(rows, j, d), 4096 + swizzled(rows, j + source.row, d + source.column));
        }
      }
    }
  }
}

TEST(Descriptors, HoldTheirFields) {
  const std::uint64_t one = matrix_descriptor(0x1230, 0x4560, 0x7890);
  EXPECT_EQ(one & 0x3FFF, 0x123U);
  EXPECT_EQ(one >> 16 & 0x3FFF, 0x456U);
  EXPECT_EQ(one >> 32 & 0x3FFF, 0x789U);
  EXPECT_EQ(one >> 49 & 0x7, 0U);  // base offset
  EXPECT_EQ(one >> 62, 1U);        // 128-byte swizzle
  // Row 16 of the second panel, column 96 of a tile of 64 rows that begins at byte 8192.
  EXPECT_EQ(row_major_descriptor(8192, 64, 16, 96),
            matrix_descriptor(8192 + 64 * 128 + 16 * 128 + 64, 16, 1024));
  EXPECT_EQ(column_major_descriptor(8192, 64, 32, 64),
            matrix_descriptor(8192 + 64 * 128 + 32 * 128, 64 * 128, 1024));
}

}  // namespace
}  // namespace katt::tile
