#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/stopwatch.hpp"
#include "measure/fresh_inputs.hpp"
#include "measure/measure.hpp"
#include "tests/message_of.hpp"

namespace katt::bench {
namespace {

/// y = 2 x, where x is one number, another one at each change.
class NumberCase final : public Case {
 public:
  int x = 1;
  int changes = 0, changes_of_all = 0;
  bool in_place = false;

  [[nodiscard]] Work work() const override { return {}; }
  [[nodiscard]] Status supports(const Config&) const override { return Status::ok(); }
  std::unique_ptr<Candidate> prepare(const Config&) override { return nullptr; }
  std::vector<InputChange> change(std::uint64_t random, bool all) override {
    x = static_cast<int>(random >> 34);
    ++(all ? changes_of_all : changes);
    return {{"x", 0, 1}};
  }
  [[nodiscard]] bool runs_in_place() const override { return in_place; }
};

/// Computes y in one of several ways, most of them dishonest.
class NumberCandidate final : public Candidate {
 public:
  enum class Way { honest, keeps_first, keeps_by_poison, keeps_by_count, copies_input };
  NumberCandidate(NumberCase& inputs, Way way) : inputs_(&inputs), way_(way) {}

  void run() override {
    ++runs_;
    const bool computes = way_ == Way::honest || (way_ == Way::keeps_first && runs_ == 1) ||
                          (way_ == Way::keeps_by_poison && y_ == poison_value) ||
                          (way_ == Way::keeps_by_count && runs_ <= 5);
    if (way_ == Way::copies_input) {
      y_ = 2 * copy_;
    } else if (computes) {
      y_ = 2 * inputs_->x;
    } else if (y_ == poison_value) {
      y_ = kept_;
    }
    kept_ = y_;
  }
  void fence() override {}
  void poison() override { y_ = poison_value; }
  Errors verify() override {
    ++verified;
    Errors errors;
    if (y_ != 2 * inputs_->x) errors.status = Status::failed("y is wrong");
    return errors;
  }
  void inputs_changed(std::span<const InputChange> changes, bool) override {
    EXPECT_EQ(changes.size(), 1U);
  }
  void take_inputs() override { copy_ = inputs_->x; }

  int verified = 0;

 private:
  static constexpr int poison_value = -1;
  NumberCase* inputs_;
  Way way_;
  int y_ = 0, kept_ = 0, runs_ = 0, copy_ = 1;
};

using Way = NumberCandidate::Way;

Contender make(NumberCase& inputs, Way way) {
  Contender contender = enter([&] { return std::make_unique<NumberCandidate>(inputs, way); });
  contender.inputs = &inputs;
  return contender;
}

const std::function<void()> no_flush = [] {};

TEST(FreshInputs, NoAnswerThatIsKeptPasses) {
  const StopFlag stop{false};
  for (int seed = 0; seed < 20; ++seed) {
    NumberCase inputs;
    std::vector<Contender> contenders;
    for (const Way way : {Way::honest, Way::copies_input, Way::keeps_first, Way::keeps_by_poison,
                          Way::keeps_by_count}) {
      contenders.push_back(make(inputs, way));
      EXPECT_TRUE(contenders.back().measured.status.is_ok()) << "with the first inputs";
    }
    ASSERT_TRUE(measure(contenders, {.rounds = 7}, no_flush, stop));
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const Status& status = contenders[i].measured.status;
      EXPECT_EQ(status.is_ok(), i < 2) << i << ": " << status.reason();
      if (i < 2) continue;
      EXPECT_TRUE(test::contains(status.reason(), "y is wrong"));
    }
    EXPECT_GE(inputs.changes_of_all, 2) << "once among the rounds, once after them";
    EXPECT_GE(inputs.changes, 1);
    EXPECT_EQ(inputs.changes + inputs.changes_of_all, 8) << "every round, and the last comparison";
  }
}

TEST(FreshInputs, ComparesInRoundsThatNobodyKnows) {
  const StopFlag stop{false};
  std::map<int, int> counts;
  for (int seed = 0; seed < 40; ++seed) {
    NumberCase inputs;
    std::vector<Contender> contenders;
    contenders.push_back(make(inputs, Way::honest));
    ASSERT_TRUE(measure(contenders, {.rounds = 30}, no_flush, stop));
    const int verified = dynamic_cast<NumberCandidate&>(*contenders[0].candidate).verified;
    EXPECT_GE(verified, 4) << "before, in rounds of both kinds, after them";
    EXPECT_LE(verified, 32);
    ++counts[verified];
  }
  EXPECT_GE(counts.size(), 3U) << "with one seed of the order within rounds";
}

/// The largest value of ranks that are threads of this test.
class Agreement {
 public:
  explicit Agreement(std::ptrdiff_t ranks)
      : values_(static_cast<std::size_t>(ranks)), together_(ranks) {}

  double largest(std::size_t rank, double value) {
    values_[rank] = value;
    together_.arrive_and_wait();
    const double most = std::ranges::max(values_);
    together_.arrive_and_wait();
    return most;
  }

 private:
  std::vector<double> values_;
  std::barrier<> together_;
};

TEST(FreshInputs, RanksDecideAlike) {
  constexpr std::size_t ranks = 3;
  constexpr int rounds = 200;
  Agreement agreement(ranks);
  std::array<NumberCase, ranks> inputs;
  std::vector<Contender> contenders;
  for (NumberCase& one : inputs) contenders.push_back(make(one, Way::honest));
  std::array<std::vector<std::pair<int, bool>>, ranks> seen;
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      FreshInputs fresh(7, [&](double value) { return agreement.largest(rank, value); });
      Contender* const contender = &contenders[rank];
      std::mt19937 times(static_cast<unsigned>(rank));  // others on each rank
      const auto seconds = [&] { return 1e-3 * static_cast<double>(times() % 1000); };
      for (int round = 0; round < rounds; ++round) {
        (void)fresh.change(std::span(&contender, 1), round);
        fresh.taken(seconds());
        const bool compares = fresh.compares(round, seconds());
        if (compares) fresh.compared(seconds());
        seen[rank].emplace_back(inputs[rank].x, compares);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_EQ(std::ssize(seen[0]), rounds);
}

TEST(FreshInputs, InPlaceAFurtherRunIsCompared) {
  const StopFlag stop{false};
  NumberCase inputs;
  inputs.in_place = true;
  std::vector<Contender> contenders;
  contenders.push_back(make(inputs, Way::honest));
  ASSERT_TRUE(measure(contenders, {.rounds = 7}, no_flush, stop));
  EXPECT_TRUE(contenders[0].measured.status.is_ok());
}

TEST(FreshInputs, WithoutACaseNothingChanges) {
  const StopFlag stop{false};
  NumberCase inputs;
  std::vector<Contender> contenders;
  contenders.push_back(make(inputs, Way::honest));
  contenders[0].inputs = nullptr;
  ASSERT_TRUE(measure(contenders, {.rounds = 7}, no_flush, stop));
  EXPECT_EQ(inputs.changes + inputs.changes_of_all, 0);
  EXPECT_EQ(dynamic_cast<NumberCandidate&>(*contenders[0].candidate).verified, 2);
}

/// Runs elsewhere, and says that a run takes a share of its time, or more.
class Claiming final : public Candidate {
 public:
  Claiming(double run_s, double share, double told_s = transport)
      : run_s_(run_s), share_(share), told_s_(told_s) {}
  void run() override { (void)timed(1); }
  void fence() override {}
  void poison() override {}
  Errors verify() override { return {}; }
  std::optional<double> timed(int runs) override {
    const Stopwatch watch;
    while (watch.seconds() < run_s_ * runs + transport) {
    }
    return share_ * (watch.seconds() - transport) / runs;
  }
  double transport_s() override { return told_s_; }
  [[nodiscard]] int process() const override { return 1; }

 private:
  static constexpr double transport = 1e-3;
  double run_s_, share_, told_s_;
};

TEST(Clocks, ThoseOfOtherProcessesAreNotBelieved) {
  const StopFlag stop{false};
  for (const auto& [share, is_right] : {std::pair(1.0, true), std::pair(0.1, false),
                                        std::pair(1e-6, false), std::pair(9.0, false)}) {
    std::vector<Contender> contenders;
    contenders.push_back(enter([s = share] { return std::make_unique<Claiming>(24e-3, s); }));
    ASSERT_TRUE(measure(contenders, {.rounds = 7}, no_flush, stop));
    const Measured& measured = contenders[0].measured;
    EXPECT_EQ(measured.status.is_ok(), is_right) << measured.status.reason();
    EXPECT_EQ(measured.claimed_s.size(), 7U);
    for (const double seconds : measured.samples_s) EXPECT_GE(seconds, 15e-3) << "our clock counts";
  }
}

TEST(Clocks, ATransportThatWasSlowOnceTakesNoTimeFromRuns) {
  const StopFlag stop{false};
  std::vector<Contender> contenders;
  contenders.push_back(enter([] { return std::make_unique<Claiming>(4e-3, 1.0, 3e-3); }));
  ASSERT_TRUE(measure(contenders, {.rounds = 3}, no_flush, stop));
  ASSERT_TRUE(contenders[0].measured.status.is_ok()) << contenders[0].measured.status.reason();
  for (const double seconds : contenders[0].measured.samples_s) EXPECT_GE(seconds, 3.9e-3);
}

TEST(Clocks, ShortRunsOfOtherProcessesAreBatched) {
  const StopFlag stop{false};
  std::vector<Contender> contenders;
  contenders.push_back(enter([] { return std::make_unique<Claiming>(1e-4, 1.0); }));
  ASSERT_TRUE(measure(contenders, {.rounds = 3}, no_flush, stop));
  EXPECT_GT(contenders[0].measured.inner, 5);
}

}  // namespace
}  // namespace katt::bench
