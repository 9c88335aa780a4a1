#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "core/stopwatch.hpp"
#include "machine/affinity.hpp"
#include "measure/measure.hpp"
#include "tests/op/toy_operator.hpp"

namespace katt::bench {
namespace {

std::vector<int> allowed_now() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> list;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) list.push_back(processor);
  }
  return list;
}

void allow_only(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

/// The processors that each thread of a team of two may use.
std::vector<std::vector<int>> team() {
  std::vector<std::vector<int>> masks(2);
#pragma omp parallel num_threads(2)
  masks[static_cast<std::size_t>(omp_get_thread_num())] = allowed_now();
  return masks;
}

class Affinity : public ::testing::Test {
 protected:
  void SetUp() override {
    if (allowed_processors().size() < 2) GTEST_SKIP() << "one processor";
  }
};

TEST_F(Affinity, EachThreadHasAProcessorOfItsOwnAndGetsItsFreedomBack) {
  const auto before = team();
  {
    const Bound bound(2);
    ASSERT_EQ(bound.processors().size(), 2U);
    EXPECT_NE(bound.processors()[0], bound.processors()[1]);
    for (const int processor : bound.processors()) {
      EXPECT_TRUE(std::count(allowed_processors().begin(), allowed_processors().end(), processor));
    }
    EXPECT_EQ(team(),
              (std::vector<std::vector<int>>{{bound.processors()[0]}, {bound.processors()[1]}}));
  }
  EXPECT_EQ(team(), before);
}

TEST_F(Affinity, AThreadOnTheWrongProcessorIsBroughtBack) {
  const Bound bound(2);
  const int first = bound.processors()[0];
#pragma omp parallel num_threads(2)
  allow_only(first);
  ASSERT_EQ(team(), (std::vector<std::vector<int>>{{first}, {first}}));
  bound.renew();
  EXPECT_EQ(team(), (std::vector<std::vector<int>>{{first}, {bound.processors()[1]}}));
}

TEST_F(Affinity, BindsNothingWhereThereIsNothingToKeepApart) {
  const auto before = team();
  const Bound none;
  const Bound one(1);
  const Bound device(0);
  const Bound crowd(static_cast<int>(allowed_processors().size()) + 1);
  for (const Bound* bound : {&none, &one, &device, &crowd}) {
    EXPECT_TRUE(bound->processors().empty());
  }
  EXPECT_EQ(team(), before);
}

TEST(Rest, WaitsForAThreadThatSpins) {
  std::atomic<bool> end{false};
  std::thread spinning([&] {
    while (!end) {
    }
  });
  EXPECT_FALSE(wait_for_rest(getpid(), 0.05));
  end = true;
  EXPECT_TRUE(wait_for_rest(getpid(), 5));
  spinning.join();
}

/// A child process that never rests.
class Spinning {
 public:
  Spinning() : pid_(fork()) {
    if (pid_ != 0) return;
    for (std::atomic<int> turns{0};; ++turns) {
    }
  }
  ~Spinning() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Spinning(const Spinning&) = delete;
  Spinning& operator=(const Spinning&) = delete;
  [[nodiscard]] pid_t id() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(Rest, AProcessThatIsGoneRests) {
  pid_t gone = 0;
  {
    const Spinning child;
    gone = child.id();
    EXPECT_FALSE(wait_for_rest(gone, 0.05));
  }
  EXPECT_TRUE(wait_for_rest(gone, 0));
}

/// A candidate that runs elsewhere.
class Remote final : public Candidate {
 public:
  explicit Remote(int process) : process_(process) {}
  void run() override {}
  void fence() override {}
  void poison() override {}
  Errors verify() override { return {.status = Status::ok()}; }
  std::optional<double> timed(int runs) override {
    const Stopwatch watch;
    std::this_thread::sleep_for(std::chrono::milliseconds(runs));
    return watch.seconds() / runs;
  }
  [[nodiscard]] int process() const override { return process_; }

 private:
  int process_;
};

TEST(Rest, NothingIsMeasuredBesideThreadsThatSpin) {
  const Spinning child;
  std::vector<Contender> contenders;
  contenders.push_back(enter([&] { return std::make_unique<Remote>(child.id()); }));
  contenders.push_back(enter(
      [] { return std::make_unique<toy::ToyCandidate>("ours", 4, toy::Behaviour{}, nullptr); }));
  const StopFlag stop{false};
  ASSERT_TRUE(measure(
      contenders, {.rounds = 2}, [] {}, stop));
  EXPECT_TRUE(contenders[0].measured.status.is_ok());
  EXPECT_NE(contenders[1].measured.status.reason().find("do not fall asleep"), std::string::npos);
}

}  // namespace
}  // namespace katt::bench
