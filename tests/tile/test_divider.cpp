#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "tile/divider.hpp"

namespace katt::tile {
namespace {

TEST(Divider, DividesEveryNumberBelow2To31) {
  std::mt19937 random(1);
  const std::uint32_t top = 0x7FFFFFFF;
  for (const std::uint32_t d : {1U, 2U, 3U, 5U, 6U, 7U, 10U, 64U, 641U, 65537U, 1U << 30, top}) {
    const Divider by(d);
    EXPECT_EQ(by.value(), d);
    const auto check = [&](std::uint32_t n) {
      ASSERT_EQ(n / by, n / d) << n << " / " << d;
      ASSERT_EQ(n % by, n % d) << n << " % " << d;
    };
    for (std::uint32_t n = 0; n < 1000; ++n) check(n), check(top - n);
    for (std::uint32_t n = d; n <= top - top % d && n >= d; n += (top / d / 1000 + 1) * d) {
      check(n), check(n - 1);
    }
    for (int i = 0; i < 1000; ++i) check(random() >> 1);
  }
  EXPECT_EQ(std::int64_t{3} * Divider(5), 15);
}

}  // namespace
}  // namespace katt::tile
