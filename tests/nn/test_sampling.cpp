#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/error.hpp"
#include "nn/inference/sampling.hpp"
#include "tests/message_of.hpp"

namespace katt {
namespace {

using nn::Sampler;
using nn::SamplingOptions;

const std::vector<float> logits{1.0F, 3.0F, 2.0F, 3.0F, -1.0F};

std::map<std::int64_t, double> shares(const SamplingOptions& options) {
  constexpr int draws = 20000;
  Sampler sampler(options);
  std::map<std::int64_t, double> share;
  for (int i = 0; i < draws; ++i) share[sampler.pick(logits)] += 1.0 / draws;
  return share;
}

TEST(Sampling, IsGreedyAtTemperatureZero) {
  Sampler sampler({});
  EXPECT_EQ(sampler.pick(logits), 1);  // the first of equals
}

TEST(Sampling, TakesTheMostLikelyAtTheLowestTemperatures) {
  for (const double temperature : {1e-30, 1e-308, 5e-324}) {
    const auto share = shares({.temperature = temperature, .top_p = 1e-9});
    EXPECT_EQ(share.size(), 1U) << temperature;
    EXPECT_TRUE(share.contains(1)) << temperature;
  }
}

TEST(Sampling, FollowsTheProbabilities) {
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / 2.0);
  auto share = shares({.temperature = 2.0, .seed = 5});
  for (std::size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(share[static_cast<std::int64_t>(i)], std::exp(logits[i] / 2.0) / total, 0.015);
  }
}

TEST(Sampling, CutsToTopKAndTopP) {
  const auto top_k = shares({.temperature = 1.0, .top_k = 3});
  EXPECT_EQ(top_k.size(), 3U);
  EXPECT_TRUE(top_k.contains(1) && top_k.contains(2) && top_k.contains(3));
  // probabilities: 0.39, 0.39, 0.14 …: two sum to less than 0.8, three to more
  EXPECT_EQ(shares({.temperature = 1.0, .top_p = 0.8}).size(), 3U);
  EXPECT_EQ(shares({.temperature = 1.0, .top_p = 0.5}).size(), 2U);
  EXPECT_EQ(shares({.temperature = 1.0, .top_p = 1e-9}).size(), 1U);
  EXPECT_EQ(shares({.temperature = 1.0, .top_k = 1}).size(), 1U);
}

TEST(Sampling, OfALargeVocabularyFollowsTheProbabilities) {
  // nearly flat, so that far more candidates than are sorted at first are looked at
  constexpr std::size_t vocabulary = 3001;
  std::vector<float> flat(vocabulary);
  for (std::size_t i = 0; i < vocabulary; ++i) flat[i] = -1e-3F * static_cast<float>(i);
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = 1.0}, SamplingOptions{.temperature = 1.0, .top_k = 1500},
        SamplingOptions{.temperature = 1.0, .top_p = 0.75}}) {
    const double end = options.top_k > 0 ? 1.5 : options.top_p < 1.0 ? 1.2456 : 3.0;
    const double expected =
        (1 - (1 + end) * std::exp(-end)) / (1 - std::exp(-end));  // mean of i/1000
    constexpr int draws = 1000;
    Sampler sampler(options);
    double mean = 0;
    for (int i = 0; i < draws; ++i) {
      mean += static_cast<double>(sampler.pick(flat)) / 1000 / draws;
    }
    EXPECT_NEAR(mean, expected, 0.08) << options.top_k << " " << options.top_p;
  }
}

TEST(Sampling, RepeatsWithItsSeed) {
  const auto draw = [](std::uint64_t seed) {
    Sampler sampler({.temperature = 1.0, .seed = seed});
    std::vector<std::int64_t> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(sampler.pick(logits));
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Sampling, RefusesOptionsThatMeanNothing) {
  const auto refuses = [](const SamplingOptions& options) {
    return test::message_of<InputError>([&] { Sampler sampler(options); });
  };
  EXPECT_TRUE(test::contains(refuses({.temperature = -1.0}), "--temperature"));
  EXPECT_TRUE(test::contains(refuses({.temperature = NAN}), "--temperature"));
  EXPECT_TRUE(test::contains(refuses({.top_k = -1}), "--top-k"));
  EXPECT_TRUE(test::contains(refuses({.top_p = 0.0}), "--top-p"));
  EXPECT_TRUE(test::contains(refuses({.top_p = 1.5}), "--top-p"));
}

}  // namespace
}  // namespace katt
