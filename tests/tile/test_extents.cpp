#include <gtest/gtest.h>

#include "tile/extents.hpp"

namespace katt {
namespace {

TEST(Extents, BlocksOfWholeUnitsCoverTheExtent) {
  for (const std::int64_t extent : {1, 31, 257, 1000, 4096}) {
    for (const std::int64_t threads : {1, 2, 3, 64}) {
      const std::int64_t block = even_block(extent, 4 * threads, 32, 1, threads);
      EXPECT_EQ(block % 32, 0);
      EXPECT_GE(block * divide_up(extent, block), extent);
      EXPECT_LE(block, round_up(divide_up(extent, 4 * threads), 32));
    }
  }
}

TEST(Extents, NoThreadWaitsForTheLastBlock) {
  EXPECT_EQ(even_block(2304, 9, 32, 1, 2), 192);  // twelve, six each, in place of nine of 256
  EXPECT_EQ(even_block(4096, 16, 32, 1, 2), 256);
  EXPECT_EQ(even_block(4096, 16, 32, 1, 1), 256);
  EXPECT_EQ(even_block(768, 3, 32, 5, 2), 192);  // twenty in place of fifteen
}

}  // namespace
}  // namespace katt
