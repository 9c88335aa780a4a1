#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/perf_event.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/stopwatch.hpp"
#include "machine/affinity.hpp"
#include "measure/counters/counters.hpp"
#include "measure/measure.hpp"
#include "record/results.hpp"
#include "tests/op/toy_operator.hpp"
#include "tests/temporary_folder.hpp"

namespace katt::bench {
namespace {

/// Events that the kernel counts on any machine: page faults, those without a disk, migrations.
constexpr CounterEvents software{CounterEvent{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS},
                                 CounterEvent{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS_MIN},
                                 CounterEvent{PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_MIGRATIONS}};

void stay_busy(double seconds) {
  const Stopwatch watch;
  while (watch.seconds() < seconds) {
  }
}

/// Writes to so many pages that were never there.
void fault(std::size_t pages) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const memory =
      mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  madvise(memory, pages * page, MADV_NOHUGEPAGE);
  for (std::size_t i = 0; i < pages; ++i) static_cast<volatile char*>(memory)[i * page] = 1;
  munmap(memory, pages * page);
}

ThreadCounts counts(int thread, double enabled_ns, double running_ns, double first, double second,
                    double third) {
  return {thread, enabled_ns, running_ns, {first, second, third}};
}

TEST(CountsBetween, SumsThreadsAndTakesTheBusiestForCycles) {
  const std::vector<ThreadCounts> before{counts(7, 100, 100, 1000, 10, 1),
                                         counts(8, 0, 0, 0, 0, 0)};
  const std::vector<ThreadCounts> after{counts(7, 300, 300, 1600, 50, 3),
                                        counts(8, 100, 100, 400, 60, 7)};
  const RunCounts run = counts_between(before, after, 2);
  EXPECT_DOUBLE_EQ(run.cycles, 300);
  EXPECT_DOUBLE_EQ(run.instructions, 50);
  EXPECT_DOUBLE_EQ(run.llc_misses, 4.5);
  EXPECT_DOUBLE_EQ(run.ghz, 1000.0 / 300);
}

TEST(CountsBetween, ScalesCountersThatTookTurns) {
  const std::vector<ThreadCounts> before{counts(7, 1000, 500, 100, 100, 100)};
  const std::vector<ThreadCounts> after{counts(7, 1400, 600, 200, 110, 100)};
  const RunCounts run = counts_between(before, after, 1);
  EXPECT_DOUBLE_EQ(run.cycles, 400);
  EXPECT_DOUBLE_EQ(run.instructions, 40);
  EXPECT_DOUBLE_EQ(run.ghz, 1);
}

TEST(CountsBetween, AThreadThatSleptCountsNothing) {
  const std::vector<ThreadCounts> before{counts(7, 10, 10, 5, 5, 5), counts(8, 20, 20, 9, 9, 9)};
  const std::vector<ThreadCounts> after{counts(7, 20, 20, 35, 5, 6), counts(8, 20, 20, 9, 9, 9)};
  const RunCounts run = counts_between(before, after, 1);
  EXPECT_DOUBLE_EQ(run.cycles, 30);
  EXPECT_DOUBLE_EQ(run.ghz, 3);
  EXPECT_DOUBLE_EQ(run.llc_misses, 1);
}

TEST(CountsBetween, WhatWasNotCountedIsNan) {
  const ThreadCounts early = counts(7, 10, 10, 5, 5, NAN), late = counts(7, 20, 20, 35, 6, NAN);
  const RunCounts lacking = counts_between({{early}}, {{late}}, 1);
  EXPECT_DOUBLE_EQ(lacking.cycles, 30);
  EXPECT_DOUBLE_EQ(lacking.instructions, 1);
  EXPECT_TRUE(std::isnan(lacking.llc_misses));
  const ThreadCounts other = counts(8, 20, 20, 35, 6, 1), never = counts(7, 20, 10, 35, 6, 1);
  EXPECT_TRUE(std::isnan(counts_between({{early}}, {{other}}, 1).cycles)) << "another thread";
  EXPECT_TRUE(std::isnan(counts_between({{early}}, {{never}}, 1).cycles)) << "no turn";
  EXPECT_TRUE(std::isnan(counts_between({}, {}, 1).ghz));
  EXPECT_TRUE(std::isnan(counts_between({{ThreadCounts{}}}, {{ThreadCounts{}}}, 1).cycles));
}

class Software : public ::testing::Test {
 protected:
  void SetUp() override {
    const Counters counters(1, software);
    if (!counters.refusal().empty()) GTEST_SKIP() << counters.refusal();
  }
};

TEST_F(Software, CountsEveryThreadOfTheTeam) {
  for (const int threads : {1, 2, 3}) {
    Counters counters(threads, software);
    ASSERT_EQ(counters.refusal(), "");
    const auto before = counters.read();
    const auto work = [](std::size_t thread) { fault(50 * (thread + 1)); };
    if (threads == 1) work(0);
    else on_each_thread(threads, work);
    const auto after = counters.read();
    ASSERT_EQ(after.size(), static_cast<std::size_t>(threads));
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_GE(after[i].values[0] - before[i].values[0], 50.0 * static_cast<double>(i + 1));
      EXPECT_GE(after[i].enabled_ns, after[i].running_ns);
    }
    const RunCounts run = counts_between(before, after, 10);
    EXPECT_GE(run.cycles, 5.0 * threads) << "of the thread with the most";
    EXPECT_GE(run.instructions, 5.0 * threads * (threads + 1) / 2) << "of all threads";
    EXPECT_LT(run.cycles, threads == 1 ? 50 : run.instructions);
    EXPECT_GT(run.ghz, 0);
  }
}

TEST_F(Software, TheRateIsByTheTimeOnAProcessor) {
  CounterEvents events = software;
  events[0] = {PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK};  // nanoseconds on a processor
  Counters counters(2, events);
  ASSERT_EQ(counters.refusal(), "");
  const auto before = counters.read();
  on_each_thread(2, [](std::size_t thread) { stay_busy(thread == 0 ? 2e-3 : 1e-4); });
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const RunCounts run = counts_between(before, counters.read(), 1);
  EXPECT_GT(run.ghz, 0.5);
  EXPECT_LT(run.ghz, 2);
}

TEST_F(Software, AnEventThatTheProcessorLacksIsNan) {
  CounterEvents events = software;
  events[1] = {PERF_TYPE_SOFTWARE, 999};
  Counters counters(1, events);
  ASSERT_EQ(counters.refusal(), "");
  const auto before = counters.read();
  fault(30);
  const RunCounts run = counts_between(before, counters.read(), 1);
  EXPECT_GE(run.cycles, 30);
  EXPECT_TRUE(std::isnan(run.instructions));
  EXPECT_FALSE(std::isnan(run.llc_misses));
  events[0] = events[1];
  Counters none(2, events);
  EXPECT_NE(none.refusal(), "");
  EXPECT_TRUE(none.read().empty());
}

TEST_F(Software, AFullTableOfFilesIsLeftToTheProgram) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  const rlimit tight{static_cast<rlim_t>(next) + 2, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &tight);
  const Counters counters(1, software);
  const int again = dup(0);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_NE(counters.refusal(), "");
  EXPECT_EQ(again, next) << "no counter stayed open";
  close(again);
}

TEST_F(Software, AMeterGathersWhatTheSamplesDid) {
  const test::TemporaryFolder root;
  const auto write = [&](const std::string& path, int value) {
    const auto file = root / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << value << '\n';
  };
  const std::string zone = "class/powercap/intel-rapl:0/";
  const std::string count = "devices/system/cpu/cpu" + std::to_string(allowed_processors()[0]) +
                            "/thermal_throttle/core_throttle_count";
  write(zone + "energy_uj", 0);
  std::ofstream(root / (zone + "name")) << "package-0\n";
  write(count, 5);
  Meter meter(1, software, root.path());
  EXPECT_EQ(meter.throttled(), 0);
  EffortLog log;
  for (int round = 1; round <= 3; ++round) {
    meter.start();
    fault(200);
    write(zone + "energy_uj", 4'000'000 * round);
    meter.stop(log, 0.01, 4);  // four runs of 10 ms
  }
  write(count, 6);
  log.throttled = meter.throttled();
  const Effort effort = log.summary();
  EXPECT_EQ(effort.cycles.size(), 3U);
  EXPECT_GE(effort.instructions, 50);
  EXPECT_NEAR(effort.joules, 1, 1e-12);
  EXPECT_EQ(effort.throttled, 1);
  log.seconds = 0.04;
  EXPECT_TRUE(std::isnan(log.summary().joules)) << "too short for a counter of milliseconds";
}

TEST(Effort, IsNanWhereNothingCounts) {
  Meter meter(0, software, "/nowhere");
  EffortLog log;
  meter.start();
  meter.stop(log, 1, 1);
  const Effort effort = log.summary();
  EXPECT_TRUE(effort.cycles.empty());
  for (const double value : {effort.ghz, effort.instructions, effort.llc_misses, effort.joules,
                             effort.throttled, meter.throttled()}) {
    EXPECT_TRUE(std::isnan(value));
  }
}

TEST(Effort, OfRowsGivesPairedRatiosOfCycles) {
  std::vector<RowResult> rows(3);
  rows[0].baseline = true;
  for (RowResult& row : rows) row.samples_s = {1, 1, 1, 1};
  rows[0].effort.cycles = {100, 200, 300, NAN};
  rows[1].effort.cycles = {50, 100, NAN, 100};
  add_speedups(rows);
  EXPECT_DOUBLE_EQ(rows[0].speedup_cycles.median, 1);
  EXPECT_DOUBLE_EQ(rows[1].speedup_cycles.median, 2);
  EXPECT_DOUBLE_EQ(rows[1].speedup.median, 1);
  EXPECT_TRUE(std::isnan(rows[2].speedup_cycles.median)) << "a peer has no counts";
}

TEST(Effort, IsMeasuredOutsideOfPeers) {
  std::vector<Contender> contenders;
  contenders.push_back(enter(
      [] { return std::make_unique<toy::ToyCandidate>("ours", 4, toy::Behaviour{}, nullptr); }));
  const StopFlag stop{false};
  ASSERT_TRUE(measure(
      contenders, {.rounds = 3}, [] {}, stop));
  ASSERT_TRUE(contenders[0].measured.status.is_ok());
  EXPECT_EQ(contenders[0].measured.effort.counts.size(), 3U);
  EXPECT_EQ(contenders[0].measured.effort.runs, 3.0 * contenders[0].measured.inner);
}

}  // namespace
}  // namespace katt::bench
