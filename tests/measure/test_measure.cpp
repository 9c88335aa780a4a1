#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "measure/measure.hpp"
#include "memory/tracker.hpp"
#include "tests/op/toy_operator.hpp"

namespace katt::bench {
namespace {

using toy::Behaviour;
using toy::Journal;

Contender make(const std::string& name, Behaviour behaviour, Journal* journal = nullptr,
               std::int64_t n = 4) {
  return enter([&] { return std::make_unique<toy::ToyCandidate>(name, n, behaviour, journal); });
}

const std::function<void()> keeps_caches = [] {};

TEST(Measure, VerifiesPoisonedOutputsBeforeAndAfterTiming) {
  Journal journal;
  std::vector<Contender> contenders;
  contenders.push_back(make("a", {}, &journal));
  EXPECT_EQ(journal, (Journal{"prepare a", "poison a", "run a", "verify a"}));
  const StopFlag stop{false};
  ASSERT_TRUE(measure(contenders, {.rounds = 3}, keeps_caches, stop));
  const Journal end(journal.end() - 3, journal.end());
  EXPECT_EQ(end, (Journal{"poison a", "run a", "verify a"}));
  EXPECT_EQ(contenders[0].measured.samples_s.size(), 3U);
  EXPECT_EQ(contenders[0].measured.max_abs_err, 0.25);
}

TEST(Measure, RestoresBeforeEveryRun) {
  for (const bool cold : {false, true}) {
    Journal journal;
    std::vector<Contender> contenders;
    contenders.push_back(make("a", {.restores = true}, &journal));
    const StopFlag stop{false};
    ASSERT_TRUE(measure(contenders, {.rounds = 4, .cold = cold}, keeps_caches, stop));
    const auto runs = std::count(journal.begin(), journal.end(), "run a");
    EXPECT_EQ(std::count(journal.begin(), journal.end(), "restore a"), runs);
    for (std::size_t i = 1; i < journal.size(); ++i) {
      if (journal[i] == "run a") {
        EXPECT_EQ(journal[i - 1], "restore a") << i;
      }
    }
    EXPECT_EQ(contenders[0].measured.inner, 1) << "such runs are never batched";
  }
}

TEST(Measure, RunsEveryContenderOnceARoundInVaryingOrder) {
  Journal journal;
  std::vector<Contender> contenders;
  for (const char* name : {"a", "b", "c"})
    contenders.push_back(make(name, {.run_s = 1e-4}, &journal));
  journal.clear();
  const StopFlag stop{false};
  constexpr int rounds = 40;
  ASSERT_TRUE(measure(contenders, {.rounds = rounds}, keeps_caches, stop));
  // Warm-up comes first, the last verification (three entries each) at the end.
  journal.resize(journal.size() - 9);
  const Journal timed(journal.end() - 3 * rounds, journal.end());
  std::set<Journal> orders;
  for (int round = 0; round < rounds; ++round) {
    Journal order(timed.begin() + 3 * round, timed.begin() + 3 * round + 3);
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (Journal{"run a", "run b", "run c"})) << round;
  }
  EXPECT_GE(orders.size(), 5U);
}

TEST(Measure, AfterARoundContendersLeaveAndTheRoundsEnd) {
  Journal journal;
  std::vector<Contender> contenders;
  for (const char* name : {"a", "b", "c"}) contenders.push_back(make(name, {}, &journal));
  int rounds = 0;
  const AfterRound after_round = [&](std::span<Contender> all) {
    ++rounds;
    if (rounds == 3) all[1].left = "too slow";
    return rounds == 9;
  };
  const StopFlag stop{false};
  ASSERT_TRUE(measure(contenders, {.precision = 1, .race = true}, keeps_caches, stop, Bound(), {},
                      after_round));
  EXPECT_EQ(rounds, 9) << "the referee says when, not the precision";
  EXPECT_EQ(contenders[0].measured.samples_s.size(), 9U);
  EXPECT_EQ(contenders[1].measured.samples_s.size(), 3U);
  EXPECT_EQ(contenders[2].measured.samples_s.size(), 9U);
  EXPECT_TRUE(contenders[1].measured.status.is_ok());
  EXPECT_EQ(std::count(journal.begin(), journal.end(), "verify a"), 2);
  EXPECT_EQ(std::count(journal.begin(), journal.end(), "verify b"), 1) << "it cannot win";

  rounds = 0;
  ASSERT_TRUE(measure(contenders, {.min_rounds = 5, .budget_s = 0, .race = true}, keeps_caches,
                      stop, Bound(), {}, [&](std::span<Contender>) { return ++rounds == 100; }));
  EXPECT_EQ(rounds, 5) << "the budget ends a race, too";
}

TEST(Measure, TakesThePointsOfAGroupOneAfterTheOther) {
  Journal journal;
  std::vector<Contender> contenders;
  for (const char* name : {"a0", "b0", "a1", "b1", "a2"}) {
    contenders.push_back(make(name, {.run_s = 1e-4}, &journal));
    contenders.back().point = static_cast<std::size_t>(name[1] - '0');
  }
  journal.clear();
  const StopFlag stop{false};
  constexpr int rounds = 30;
  ASSERT_TRUE(measure(contenders, {.rounds = rounds}, keeps_caches, stop));
  journal.resize(journal.size() - 15);                   // the last verification
  journal.erase(journal.begin(), journal.begin() + 15);  // warm-up
  std::set<Journal> orders;
  std::size_t at = 0;
  char last = '2';  // warmed up last
  for (int round = 0; round < rounds; ++round) {
    Journal samples;
    std::string points;
    while (samples.size() < 5) {
      ASSERT_LT(at, journal.size());
      std::string run = journal[at++];
      if (run.back() != last) {
        ASSERT_LT(at, journal.size());
        EXPECT_EQ(journal[at++], run) << "another point: a run that does not count";
      }
      last = run.back();
      if (points.empty() || points.back() != last) points += last;
      samples.push_back(std::move(run));
    }
    EXPECT_EQ(points.size(), 3U) << points;
    orders.insert(samples);
    std::sort(samples.begin(), samples.end());
    EXPECT_EQ(samples, (Journal{"run a0", "run a1", "run a2", "run b0", "run b1"})) << round;
  }
  EXPECT_EQ(at, journal.size());
  EXPECT_GE(orders.size(), 10U);
  for (const Contender& contender : contenders) {
    EXPECT_EQ(contender.measured.samples_s.size(), static_cast<std::size_t>(rounds));
  }
}

TEST(Measure, KeepsTheOrderOfASeed) {
  const StopFlag stop{false};
  const auto order = [&](std::uint64_t seed) {
    Journal journal;
    std::vector<Contender> contenders;
    for (const char* name : {"a", "b"}) contenders.push_back(make(name, {.run_s = 1e-4}, &journal));
    journal.clear();
    (void)measure(contenders, {.rounds = 30, .budget_s = 0, .seed = seed}, keeps_caches, stop);
    return journal;
  };
  EXPECT_EQ(order(3), order(3));
  EXPECT_NE(order(3), order(4));
}

TEST(Measure, StopsAtTheBudgetButNotBeforeTheLeastRounds) {
  const StopFlag stop{false};
  std::vector<Contender> slow;
  slow.push_back(make("slow", {.run_s = 2e-3}));
  ASSERT_TRUE(measure(slow, {.budget_s = 0, .precision = 0}, keeps_caches, stop));
  EXPECT_EQ(slow[0].measured.samples_s.size(), 7U);
  std::vector<Contender> more;
  more.push_back(make("more", {.run_s = 2e-3}));
  // A busy machine may leave few of 250 runs.
  ASSERT_TRUE(measure(more, {.budget_s = 0.5, .precision = 0}, keeps_caches, stop));
  EXPECT_GT(more[0].measured.samples_s.size(), 10U);
  EXPECT_LT(more[0].measured.samples_s.size(), 260U);
}

TEST(Measure, BatchesShortRuns) {
  const StopFlag stop{false};
  std::vector<Contender> contenders;
  contenders.push_back(make("short", {.run_s = 1e-6}));
  contenders.push_back(make("long", {.run_s = 2e-4}));
  ASSERT_TRUE(measure(contenders, {.rounds = 5}, keeps_caches, stop));
  EXPECT_GT(contenders[0].measured.inner, 10);
  EXPECT_LT(contenders[0].measured.samples_s[0], 1e-4);
  EXPECT_EQ(contenders[1].measured.inner, 1);
}

/// A candidate that says how long a run takes, as those of a device do.
class Clocked : public Candidate {
 public:
  explicit Clocked(double run_s) : run_s_(run_s) {}
  void run() override {}
  void fence() override {}
  void poison() override {}
  Errors verify() override { return {}; }
  std::optional<double> timed(int /*runs*/) override { return run_s_; }

 private:
  double run_s_;
};

TEST(Measure, BatchesRunsOnADeviceForTwoMilliseconds) {
  const StopFlag stop{false};
  std::vector<Contender> contenders;
  for (const double run_s : {4e-4, 3e-3}) {
    for (const bool on_device : {true, false}) {
      contenders.push_back(enter([=] { return std::make_unique<Clocked>(run_s); }, 0, on_device));
    }
  }
  ASSERT_TRUE(measure(contenders, {.rounds = 3}, keeps_caches, stop));
  EXPECT_EQ(contenders[0].measured.inner, 5);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(contenders[i].measured.inner, 1) << i;
  EXPECT_TRUE(contenders[1].measured.sm_clock_hz.empty()) << "of a host";
  for (const double hz : contenders[0].measured.sm_clock_hz) {  // none without NVML
    EXPECT_GT(hz, 1e8);
    EXPECT_LT(hz, 1e10);
  }
}

TEST(Measure, FlushesBeforeEverySampleWhenCold) {
  const StopFlag stop{false};
  int flushes = 0;
  std::vector<Contender> contenders;
  contenders.push_back(make("short", {.run_s = 1e-6}));
  contenders.push_back(make("other", {.run_s = 1e-6}));
  ASSERT_TRUE(measure(
      contenders, {.rounds = 5, .cold = true}, [&] { ++flushes; }, stop));
  EXPECT_EQ(flushes, 10);
  EXPECT_EQ(contenders[0].measured.inner, 1);
}

TEST(Measure, TurnsMishapsIntoFailuresOfTheirOwn) {
  const StopFlag stop{false};
  Journal journal;
  std::vector<Contender> contenders;
  contenders.push_back(make("wrong", {.wrong = true}, &journal));
  contenders.push_back(make("throws", {.throws = true}));
  contenders.push_back(make("no memory", {.no_memory = true}));
  contenders.push_back(make("later", {.wrong_later = true}));
  contenders.push_back(make("good", {}));
  ASSERT_TRUE(measure(contenders, {.rounds = 3}, keeps_caches, stop));
  EXPECT_EQ(contenders[0].measured.status.name(), "failed");
  EXPECT_EQ(contenders[0].measured.status.reason(), "out(0, 0) is 1, expected 2");
  EXPECT_EQ(std::count(journal.begin(), journal.end(), "run wrong"), 1)
      << "a wrong variant is not timed";
  EXPECT_EQ(contenders[1].measured.status.reason(), "it broke");
  EXPECT_EQ(contenders[2].measured.status.reason(), "out of memory");
  EXPECT_EQ(contenders[3].measured.status.reason(), "after timing: out(0, 0) is 1, expected 2");
  EXPECT_TRUE(contenders[4].measured.status.is_ok());
  EXPECT_EQ(contenders[4].measured.samples_s.size(), 3U);
}

TEST(Measure, StopsWhenAsked) {
  const StopFlag stop{true};
  std::vector<Contender> contenders;
  contenders.push_back(make("a", {}));
  EXPECT_FALSE(measure(contenders, {}, keeps_caches, stop));
}

TEST(Measure, MeasuresTheMemoryOfEachAlone) {
  memory::install();
  const Contender small = make("small", {}, nullptr, 1000);
  const Contender large = make("large", {}, nullptr, 100000);
  EXPECT_GE(small.measured.peak->host, 4000U);
  EXPECT_LT(small.measured.peak->host, 5000U);
  EXPECT_GE(large.measured.peak->host, 400000U);
  EXPECT_LT(large.measured.peak->host, 401000U);
}

}  // namespace
}  // namespace katt::bench
