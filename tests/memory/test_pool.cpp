#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "memory/pool.hpp"
#include "memory/tracker.hpp"
#include "tests/message_of.hpp"

namespace katt::memory {
namespace {

using Pool = MemoryPool<Kokkos::HostSpace>;
using Exec = Kokkos::DefaultHostExecutionSpace;

TEST(Pool, CountsWhatIsAskedForAndWhatIsReserved) {
  Pool pool("katt::test::pool");
  EXPECT_EQ(pool.statistics().efficiency(), 1);
  {
    const PoolBlock a = pool.allocate(Exec(), 1000);
    const PoolBlock b = pool.allocate(Exec(), 1);
    EXPECT_EQ(a.size(), 1000U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 64, 0U);
    const PoolStatistics s = pool.statistics();
    EXPECT_EQ(s.live_bytes, 1001U);
    EXPECT_EQ(s.reserved_bytes, 1024U + 64U);
    EXPECT_EQ(s.cached_bytes, 0U);
    EXPECT_EQ(s.allocations, 2U);
    EXPECT_EQ(s.reused, 0U);
  }
  const PoolStatistics s = pool.statistics();
  EXPECT_EQ(s.live_bytes, 0U);
  EXPECT_EQ(s.peak_bytes, 1001U);
  EXPECT_EQ(s.fragmentation(), 1);
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
  EXPECT_EQ(pool.statistics().peak_reserved_bytes, 1088U);
}

TEST(Pool, ReusesABlockOfTheSameClass) {
  Pool pool("katt::test::pool");
  const std::byte* first = nullptr;
  {
    const PoolBlock block = pool.allocate(Exec(), 1000);
    first = block.data();
  }
  const PoolBlock again = pool.allocate(Exec(), 1020);
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(pool.statistics().reused, 1U);
  EXPECT_EQ(pool.statistics().reserved_bytes, 1024U);
}

TEST(Pool, NothingIsNothing) {
  Pool pool("katt::test::pool", 0);
  const PoolBlock block = pool.allocate(Exec(), 0);
  EXPECT_EQ(block.data(), nullptr);
  EXPECT_EQ(pool.statistics().allocations, 0U);
}

TEST(Pool, TheLimitIsAnErrorThatSaysEverythingAndTheProgramGoesOn) {
  Pool pool("katt::test::pool", 4096);
  PoolBlock held = pool.allocate(Exec(), 3000);
  EXPECT_EQ(test::message_of<LimitError>([&] { (void)pool.allocate(Exec(), 2000); }),
            "katt::test::pool: 2000 bytes asked for with 3000 live, the limit is 4096");
  EXPECT_EQ(pool.statistics().live_bytes, 3000U);
  const PoolBlock small = pool.allocate(Exec(), 512);
  EXPECT_NE(small.data(), nullptr);
  EXPECT_THROW((void)pool.allocate(Exec(), Pool::unlimited), LimitError);
}

TEST(Pool, CachedBlocksMakeRoomBeforeTheLimitIsHit) {
  Pool pool("katt::test::pool", 4096);
  { const PoolBlock block = pool.allocate(Exec(), 3000); }
  const PoolBlock other = pool.allocate(Exec(), 4000);
  EXPECT_EQ(pool.statistics().reserved_bytes, 4096U);
}

TEST(Pool, TheTrackerSeesWhatIsReserved) {
  install();
  const std::size_t before = live_bytes();
  Pool pool("katt::test::pool");
  {
    const PoolBlock block = pool.allocate(Exec(), 5000);
    EXPECT_EQ(live_bytes(), before + pool.statistics().reserved_bytes);
  }
  pool.trim();
  EXPECT_EQ(live_bytes(), before);
}

TEST(Pool, ABlockMayOutliveItsPool) {
  install();
  const std::size_t before = live_bytes();
  {
    PoolBlock block;
    {
      Pool pool("katt::test::pool");
      block = pool.allocate(Exec(), 100);
    }
    std::memset(block.data(), 1, block.size());
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST(Pool, AnotherInstanceWaitsForTheFirst) {
#if defined(KOKKOS_ENABLE_OPENMP)
  static int fences = 0;
  Kokkos::Tools::Experimental::set_begin_fence_callback(
      [](const char* label, std::uint32_t, std::uint64_t*) {
        if (std::strstr(label, "katt::memory::pool") != nullptr) ++fences;
      });
  Pool pool("katt::test::pool");
  const Kokkos::OpenMP one(1);
  const Kokkos::OpenMP two(1);
  { const PoolBlock block = pool.allocate(one, 256); }
  { const PoolBlock same = pool.allocate(one, 256); }
  EXPECT_EQ(fences, 0) << "the same instance follows in order";
  const PoolBlock other = pool.allocate(two, 256);
  EXPECT_EQ(fences, 1);
  EXPECT_EQ(pool.statistics().reused, 2U);
  Kokkos::Tools::Experimental::set_begin_fence_callback(nullptr);
#else
  GTEST_SKIP() << "skipped: this build has no OpenMP";
#endif
}

TEST(Pool, StatisticsAsJson) {
  Pool pool("katt::test::pool", 1 << 20);
  const PoolBlock block = pool.allocate(Exec(), 100);
  const auto json = nlohmann::json::parse(pool.statistics().json());
  EXPECT_EQ(json.at("live_bytes"), 100);
  EXPECT_EQ(json.at("limit_bytes"), 1 << 20);
  EXPECT_EQ(json.at("efficiency"), 100.0 / 128);
}

TEST(Pool, IsThreadSafe) {
  Pool pool("katt::test::pool");
  const auto work = [&](unsigned char mark) {
    for (int i = 0; i < 2000; ++i) {
      const PoolBlock block = pool.allocate(Exec(), 64 + static_cast<std::size_t>(i) % 500);
      std::memset(block.data(), mark, block.size());
      ASSERT_TRUE(std::all_of(block.data(), block.data() + block.size(),
                              [&](std::byte b) { return b == std::byte{mark}; }));
    }
  };
  std::thread a(work, 1);
  std::thread b(work, 2);
  a.join();
  b.join();
  EXPECT_EQ(pool.statistics().live_bytes, 0U);
  EXPECT_EQ(pool.statistics().allocations, 4000U);
}

RC_GTEST_PROP(PoolProperty, LiveBlocksNeverOverlapAndEverythingIsCounted, ()) {
  Pool pool("katt::test::pool", std::size_t{1} << 16);
  std::vector<PoolBlock> live;
  std::size_t expected = 0;
  const auto steps = *rc::gen::container<std::vector<int>>(rc::gen::inRange(-3, 9000));
  for (const int step : steps) {
    if (step <= 0) {
      if (live.empty()) continue;
      const std::size_t victim = static_cast<std::size_t>(-step) % live.size();
      expected -= live[victim].size();
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      try {
        live.push_back(pool.allocate(Exec(), static_cast<std::size_t>(step)));
        expected += static_cast<std::size_t>(step);
      } catch (const LimitError&) {
        RC_ASSERT(pool.statistics().reserved_bytes + 9000 * 9 / 8 > (std::size_t{1} << 16));
      }
    }
    const PoolStatistics s = pool.statistics();
    RC_ASSERT(s.live_bytes == expected);
    RC_ASSERT(s.reserved_bytes <= s.limit_bytes);
    RC_ASSERT(s.live_bytes + s.cached_bytes <= s.reserved_bytes);
    RC_ASSERT(s.peak_bytes >= s.live_bytes);
  }
  for (std::size_t i = 0; i < live.size(); ++i) {
    for (std::size_t j = i + 1; j < live.size(); ++j) {
      const bool apart = live[i].data() + live[i].size() <= live[j].data() ||
                         live[j].data() + live[j].size() <= live[i].data();
      RC_ASSERT(apart);
    }
  }
}

}  // namespace
}  // namespace katt::memory
