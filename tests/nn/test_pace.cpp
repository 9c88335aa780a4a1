#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "nn/inference/pace.hpp"

namespace katt::nn {
namespace {

/// Takes so many steps that need so long, each way, and returns what they took.
double run(Pace& pace, int steps, std::array<double, 2> seconds) {
  double total = 0;
  for (int i = 0; i < steps; ++i) {
    const double taken = seconds[static_cast<std::size_t>(pace.next())];
    total += taken;
    pace.took(taken);
  }
  return total;
}

TEST(Pace, StaysWithTheFasterWay) {
  for (const std::array<double, 2>& seconds : {std::array{1.0, 1.7}, {4.0, 1.0}, {1.0, 1.0}}) {
    Pace pace;
    EXPECT_LE(run(pace, 500, seconds), 1.1 * 500 * std::min(seconds[0], seconds[1]));
  }
}

TEST(Pace, ChangesItsMindSoon) {
  Pace pace;
  (void)run(pace, 300, {1.0, 1.7});
  // Another program takes a processor: some steps are late, and then trials alone.
  EXPECT_LE(run(pace, 50, {5.0, 1.7}), 1.7 * 50 + 6 * (5.0 - 1.7));
  // It has gone: seen at the next trial.
  EXPECT_LE(run(pace, 500, {1.0, 1.7}), 1.0 * 500 + 0.7 * 80);
}

TEST(Pace, OneLateStepChangesLittle) {
  Pace pace;
  (void)run(pace, 300, {1.0, 1.7});
  (void)run(pace, 1, {9.0, 9.0});
  EXPECT_LE(run(pace, 200, {1.0, 1.7}), 1.0 * 200 + 0.7 * 20);
}

}  // namespace
}  // namespace katt::nn
