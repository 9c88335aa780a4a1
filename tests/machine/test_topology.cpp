#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "machine/affinity.hpp"
#include "machine/topology.hpp"

namespace katt::bench {
namespace {

/// Two sockets of eight cores with two hardware threads; hwloc numbers the processors 0, 1, … along
/// the topology.
const Topology& two_sockets() {
  static const Topology host = synthetic_topology(
      "pack:2 numa:1 l3:1(size=33554432) l2:8(size=1048576) l1d:1(size=32768) core:1 pu:2");
  return host;
}
const Topology& nodes_without_smt() {
  static const Topology host =
      synthetic_topology("pack:1 group:4 [numa] l3:1(size=16777216) core:3 pu:1");
  return host;
}

std::vector<int> ids(const Topology& host) {
  std::vector<int> list;
  for (const Processor& processor : host.processors) list.push_back(processor.id);
  return list;
}
const Processor& processor_of(const Topology& host, int id) {
  return *std::ranges::find(host.processors, id, &Processor::id);
}
std::vector<int> range(int first, int last, int step = 1) {
  std::vector<int> list;
  for (int i = first; i < last; i += step) list.push_back(i);
  return list;
}

TEST(Topology, DescribesSocketsCoresThreadsAndCaches) {
  const Topology& host = two_sockets();
  EXPECT_EQ(host.sockets(), 2);
  EXPECT_EQ(host.nodes(), 2);
  EXPECT_EQ(host.cores(), 16);
  ASSERT_EQ(host.processors.size(), 32U);
  EXPECT_EQ(host.processors[17], (Processor{.id = 17, .socket = 1, .node = 1, .core = 8}));
  EXPECT_EQ(host.cache_bytes(1), 32768U);
  EXPECT_EQ(host.cache_bytes(3), 33554432U);
  EXPECT_EQ(host.cache_bytes(4), 0U);
  EXPECT_EQ(topology_text(host), "2 sockets × 8 cores × 2 threads, 2 NUMA nodes");
  EXPECT_EQ(caches_text(host),
            "L1 32 KiB shared by 2, L2 1 MiB shared by 2, L3 32 MiB shared by 16");
  EXPECT_EQ(node_lines(host), (std::vector<std::string>{"node 0: socket 0, processors 0-15",
                                                        "node 1: socket 1, processors 16-31"}));
}

TEST(Topology, DescribesNodesOfOneSocketAndCoresThatAreNotAlike) {
  const Topology& host = nodes_without_smt();
  EXPECT_EQ(topology_text(host), "1 socket × 12 cores × 1 thread, 4 NUMA nodes");
  EXPECT_EQ(node_lines(host)[3], "node 3: socket 0, processors 9-11");
  Topology part = two_sockets();
  std::erase_if(part.processors, [](const Processor& one) { return one.id % 5 == 1; });
  EXPECT_EQ(topology_text(part), "2 sockets, 16 cores, 25 threads, 2 NUMA nodes");
  EXPECT_EQ(topology_text(Topology{}), "unknown");
  EXPECT_THROW((void)synthetic_topology("nonsense:"), std::invalid_argument);
}

TEST(Topology, KnowsTheProcessorsOfThisProcess) {
  const std::vector<int> known = ids(topology());
  for (const int processor : allowed_processors()) {
    EXPECT_EQ(std::ranges::count(known, processor), 1) << processor;
  }
  EXPECT_GE(topology().sockets(), 1);
  EXPECT_GE(topology().nodes(), 1);
}

TEST(Placement, CoresComeFirstAndTheirSecondThreadsLast) {
  const Topology& host = two_sockets();
  const std::vector<int> all = ids(host);
  // All threads still on one processor: one core each, in the order of the topology.
  EXPECT_EQ(placement(host, all, std::vector<int>(16, 0)), range(0, 32, 2));
  std::vector<int> both = range(0, 32, 2);
  const std::vector<int> second = range(1, 32, 2);
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(placement(host, all, std::vector<int>(32, 7)), both);
  const std::vector<int> twenty = placement(host, all, std::vector<int>(20, 0));
  EXPECT_TRUE(std::equal(twenty.begin(), twenty.begin() + 16, both.begin()));
  EXPECT_EQ(std::vector<int>(twenty.begin() + 16, twenty.end()), range(1, 9, 2));
}

TEST(Placement, KeepsIdleCoresThatTheSystemChose) {
  const Topology& host = two_sockets();
  const std::vector<int> all = ids(host);
  EXPECT_EQ(placement(host, all, {30, 5, 11}), (std::vector<int>{5, 11, 30}));
  // 4 and 5 are one core: one of the threads moves to a free one.
  EXPECT_EQ(placement(host, all, {4, 5, 30}), (std::vector<int>{0, 4, 30}));
}

TEST(Placement, StaysInsideTheAllowedProcessors) {
  const Topology& host = two_sockets();
  // Two whole cores and one hardware thread of a third.
  const std::vector<int> allowed{6, 7, 9, 20, 21};
  EXPECT_EQ(placement(host, allowed, {9, 9, 9}), (std::vector<int>{6, 9, 20}));
  EXPECT_EQ(placement(host, allowed, {7, 7, 7, 7}), (std::vector<int>{6, 9, 20, 7}));
  EXPECT_EQ(placement(host, allowed, {0, 1, 2, 3, 4}), (std::vector<int>{6, 9, 20, 7, 21}));
  EXPECT_THROW((void)placement(host, allowed, std::vector<int>(6, 6)), std::invalid_argument);
}

TEST(Placement, OfNodesWithoutSmtFollowsTheNodes) {
  const Topology& host = nodes_without_smt();
  EXPECT_EQ(placement(host, ids(host), {10, 4, 1, 7}), (std::vector<int>{1, 4, 7, 10}));
  EXPECT_EQ(placement(host, ids(host), std::vector<int>(12, 3)), range(0, 12));
}

TEST(Placement, OfTwoCoresIsEveryProcessor) {
  const Topology host = synthetic_topology("pack:1 core:2 pu:1");
  for (const auto& settled : {std::vector{0, 1}, {1, 0}, {0, 0}, {1, 1}}) {
    EXPECT_EQ(placement(host, {0, 1}, settled), (std::vector<int>{0, 1}));
  }
}

TEST(Placement, TakesProcessorsThatTheTopologyLacks) {
  EXPECT_EQ(placement(Topology{}, {3, 8}, {8, 8}), (std::vector<int>{3, 8}));
}

RC_GTEST_PROP(Placement, GivesEachThreadAProcessorAndNoCoreTwoWhileOneIsFree, ()) {
  const Topology& host = two_sockets();
  const auto chosen = *rc::gen::unique<std::vector<int>>(rc::gen::inRange(0, 32));
  RC_PRE(!chosen.empty());
  const auto threads = *rc::gen::inRange<std::size_t>(1, chosen.size() + 1);
  const auto settled = *rc::gen::container<std::vector<int>>(threads, rc::gen::elementOf(chosen));
  const std::vector<int> placed = placement(host, chosen, settled);
  RC_ASSERT(placed.size() == threads);
  RC_ASSERT(std::set(placed.begin(), placed.end()).size() == threads);
  std::set<int> cores, used;
  for (const int id : chosen) cores.insert(processor_of(host, id).core);
  for (const int id : placed) {
    RC_ASSERT(std::ranges::count(chosen, id) == 1);
    used.insert(processor_of(host, id).core);
  }
  RC_ASSERT(used.size() == std::min(cores.size(), threads));
  // The first threads have a core each, along the topology.
  for (std::size_t i = 1; i < used.size(); ++i) {
    RC_ASSERT(processor_of(host, placed[i - 1]).core < processor_of(host, placed[i]).core);
  }
}

TEST(FirstTouch, BringsEveryPageAndChangesNoValue) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (const std::size_t pages : {std::size_t{7}, std::size_t{64}, std::size_t{101}}) {
    void* const memory =
        mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* const bytes = static_cast<unsigned char*>(memory);
    bytes[3 * page] = 42;
    std::vector<unsigned char> there(pages);
    touch_in_parts(3, memory, pages * page);
    ASSERT_EQ(mincore(memory, pages * page, there.data()), 0);
    EXPECT_EQ(std::ranges::count_if(there, [](unsigned char one) { return (one & 1U) != 0; }),
              static_cast<std::ptrdiff_t>(pages));
    EXPECT_EQ(std::accumulate(bytes, bytes + pages * page, 0), 42);
    munmap(memory, pages * page);
  }
}

}  // namespace
}  // namespace katt::bench
