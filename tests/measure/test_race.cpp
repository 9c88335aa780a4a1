#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "measure/race.hpp"

namespace katt::bench {
namespace {

using Members = std::vector<Race::Member>;

/// Settings by their true times, and their samples of the rounds so far. Noise is like that of a
/// busy machine: a few per cent in each sample, more in all samples of a round, and now and then a
/// sample far above.
class Track {
 public:
  Track(std::vector<double> times, double noise, std::uint64_t seed)
      : times_(std::move(times)), noise_(noise), random_(seed), samples_(times_.size()) {}

  void round(std::span<const Race::Member> members) {
    const double of_round = std::exp(3 * noise_ * normal_(random_));
    for (const Race::Member& member : members) {
      const double far = random_() % 20 == 0 ? 1.5 : 1.0;
      samples_[member.id].push_back(times_[member.id] * of_round * far *
                                    std::exp(noise_ * normal_(random_)));
    }
  }
  [[nodiscard]] Race::Samples samples() const {
    return [this](std::size_t id) { return std::span<const double>(samples_[id]); };
  }
  [[nodiscard]] std::size_t rounds(std::size_t id) const { return samples_[id].size(); }
  [[nodiscard]] std::size_t cost() const {
    std::size_t sum = 0;
    for (const auto& samples : samples_) sum += samples.size();
    return sum;
  }
  void fail(std::size_t id) { samples_[id].clear(); }

 private:
  std::vector<double> times_;
  double noise_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_{0, 1};
  std::vector<std::vector<double>> samples_;
};

Members members_of(std::size_t count, std::size_t usual) {
  Members members;
  for (std::size_t i = 0; i < count; ++i) members.push_back({.id = i, .is_default = i == usual});
  return members;
}

constexpr std::size_t no_default = 1000;

/// Runs a race to its end, or for `most` rounds, and returns the winner.
std::size_t run(Race& race, Track& track, int most = 1000) {
  for (int round = 0; round < most && !race.is_over(); ++round) {
    track.round(race.members());
    static_cast<void>(race.after_round(track.samples()));
  }
  return winner_of(race.members(), track.samples());
}

TEST(Race, ASettingTwiceAsSlowLeavesAtTheFirstLook) {
  Race race(members_of(3, no_default));
  Track track({1.0, 2.0, 2.1}, 0.001, 1);
  EXPECT_EQ(run(race, track), 0U);
  EXPECT_EQ(track.rounds(1), 3U);
  EXPECT_EQ(track.rounds(2), 3U);
  EXPECT_EQ(track.rounds(0), 7U) << "the winner's time has the fewest rounds of a sweep";
}

TEST(Race, TellsWhoLeavesAndWhy) {
  Race race(members_of(3, no_default));
  std::vector<std::vector<double>> samples(3);
  std::vector<Departure> leaving;
  const auto show = [&](std::size_t id) -> std::span<const double> { return samples[id]; };
  for (int round = 0; round < 7; ++round) {
    samples[0].push_back(1.0);
    samples[1].push_back(1.5 + 0.001 * round);
    samples[2].push_back(1.0 - 0.001 * (round % 3));
    for (const Departure& departure : race.after_round(show)) leaving.push_back(departure);
    EXPECT_EQ(leaving.size(), round < 2 ? 0U : round < 6 ? 1U : 2U) << round;
  }
  ASSERT_EQ(leaving.size(), 2U);
  EXPECT_EQ(leaving[0].id, 1U);
  EXPECT_EQ(leaving[0].leader, 2U);
  EXPECT_EQ(leaving[0].why, Leaving::slower);
  EXPECT_NEAR(leaving[0].ratio.median, 1.502 / 0.998, 0.01);
  EXPECT_EQ(leaving[1].id, 0U);
  EXPECT_EQ(leaving[1].why, Leaving::not_faster);
  EXPECT_TRUE(race.is_over());
}

TEST(Race, EqualSettingsEnd) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Race race(members_of(12, 5));
    Track track(std::vector<double>(12, 1.0), 0.03, seed);
    static_cast<void>(run(race, track));
    EXPECT_TRUE(race.is_over()) << seed;
  }
}

TEST(Race, TheDefaultStaysAmongEquals) {
  int stayed = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Race race(members_of(8, 5));
    Track track(std::vector<double>(8, 1.0), 0.01, seed);
    stayed += run(race, track) == 5 ? 1 : 0;
  }
  EXPECT_GE(stayed, 40);
}

TEST(Race, ASlowerDefaultLeaves) {
  Race race(members_of(4, 3));
  Track track({1.0, 1.2, 1.3, 1.1}, 0.01, 3);
  EXPECT_EQ(run(race, track), 0U);
  EXPECT_TRUE(race.is_over());
  EXPECT_GE(track.rounds(3), 7U) << "users read how much is gained over it";
}

TEST(Race, WinnersAreRarelyWrong) {
  // Times of a recorded space, settings that are all but equal, and one that is too good to miss.
  const std::vector<std::vector<double>> spaces{
      {1.0, 1.011, 1.04, 1.05, 1.043, 1.059, 1.063, 1.095, 1.186, 1.189},
      {1.0, 1.002, 1.005, 1.01, 1.01, 1.03, 1.03, 1.03, 1.05, 1.05},
      {1.0, 1.03, 1.03, 1.03, 1.03, 1.03, 1.03, 1.03, 1.03, 1.03, 1.03, 1.03}};
  constexpr int races = 100;
  for (const std::vector<double>& times : spaces) {
    int wrong = 0;
    std::size_t cost = 0;
    for (int seed = 1; seed <= races; ++seed) {
      Race race(members_of(times.size(), times.size() - 1));
      Track track(times, 0.03, static_cast<std::uint64_t>(seed));
      wrong += times[run(race, track)] > 1.02 ? 1 : 0;
      cost += track.cost();
    }
    EXPECT_LE(wrong, races / 20);
    EXPECT_LT(cost, races * times.size() * 60) << "samples";
  }
}

TEST(Race, FailedSettingsAreForgotten) {
  Race race(members_of(3, no_default));
  Track track({1.0, 1.1, 1.2}, 0.01, 5);
  for (int round = 0; round < 2; ++round) {
    track.round(race.members());
    EXPECT_TRUE(race.after_round(track.samples()).empty());
  }
  track.fail(0);
  static_cast<void>(race.after_round(track.samples()));
  EXPECT_EQ(race.members().size(), 2U);
  EXPECT_EQ(run(race, track), 1U);
  track.fail(1);
  Race lonely(members_of(1, no_default));
  Track empty({1.0}, 0.01, 6);
  EXPECT_TRUE(lonely.after_round(empty.samples()).empty());
  EXPECT_TRUE(lonely.is_over());
  EXPECT_TRUE(Race(Members{}).is_over());
  EXPECT_THROW(static_cast<void>(winner_of(Members{}, empty.samples())), std::invalid_argument);
}

TEST(Race, LooksRarelyAtManyRounds) {
  Race race(members_of(2, no_default), {.tolerance = 0});
  int looks = 0;
  std::vector<std::vector<double>> samples(2);
  for (int round = 0; round < 100; ++round) {
    samples[0].push_back(round % 2 == 0 ? 1.0 : 1.1);  // neither is ever faster
    samples[1].push_back(round % 2 == 0 ? 1.1 : 1.0);
    std::size_t asked = 0;
    const auto show = [&](std::size_t id) -> std::span<const double> {
      ++asked;
      return samples[id];
    };
    EXPECT_TRUE(race.after_round(show).empty());
    looks += asked > 4 ? 1 : 0;
  }
  EXPECT_FALSE(race.is_over());
  EXPECT_GE(looks, 6);
  EXPECT_LE(looks, 10);
}

}  // namespace
}  // namespace katt::bench
