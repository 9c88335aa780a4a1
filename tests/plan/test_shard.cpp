#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "plan/shard.hpp"
#include "tests/op/toy_operator.hpp"

namespace katt::bench {
namespace {

std::vector<PlannedCase> plan_of(const Operator& op, const std::string& sizes) {
  SweepEntry entry{.op = &op, .label = "", .axes = {}, .where = ""};
  const std::vector<AxisText> typed{{"size", sizes, "--size"}};
  override_axes(entry, typed);
  return plan_cases(std::vector{entry}, 1);
}

TEST(Shard, Texts) {
  EXPECT_EQ(parse_shard("2/4").index, 2);
  EXPECT_EQ(parse_shard("2/4").count, 4);
  EXPECT_EQ(to_text(parse_shard("1/1")), "1/1");
  for (const char* text : {"", "0/4", "5/4", "1", "1/2/3", "a/2", "1/b", "-1/2", "1/-2", "1 2"}) {
    EXPECT_THROW((void)parse_shard(text), InputError) << text;
  }
}

RC_GTEST_PROP(Shard, EveryPointIsInOnePartAndPartsAreEven, ()) {
  const toy::ToyOperator op;
  const auto points = *rc::gen::inRange(1, 60);
  std::string sizes = "8";
  for (int i = 2; i <= points; ++i) sizes += "," + std::to_string(8 * i);
  const auto plan = plan_of(op, sizes);
  const auto count = *rc::gen::inRange(1, points + 1);
  Settings settings;
  settings.rounds = *rc::gen::inRange(0, 3);
  const std::vector<int> parts = split(plan, count, settings);
  RC_ASSERT(parts.size() == plan.size());
  std::vector<double> load(static_cast<std::size_t>(count));
  double longest = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const double seconds = forecast_s(plan[i], settings);
    load[static_cast<std::size_t>(parts.at(i))] += seconds;
    longest = std::max(longest, seconds);
  }
  // Greedy by size: no two parts differ by more than the longest point (and rounding).
  RC_ASSERT(*std::max_element(load.begin(), load.end()) -
                *std::min_element(load.begin(), load.end()) <=
            longest + 1e-6 * static_cast<double>(plan.size() + 1));

  std::set<std::size_t> places;
  std::size_t rows = 0;
  std::set<std::string> splits;
  for (int index = 1; index <= count; ++index) {
    const Part part = part_of(plan, {.index = index, .count = count}, settings);
    RC_ASSERT(!part.tasks.empty());
    splits.insert(part.split);
    for (const Task& task : part.tasks) {
      RC_ASSERT(task.wanted.size() == task.planned.configs.size());
      RC_ASSERT(std::is_sorted(task.wanted.begin(), task.wanted.end()));
      RC_ASSERT(case_key(task.planned) == case_key(plan[task.number]));
      for (std::size_t i = 0; i < task.wanted.size(); ++i) places.insert(task.place(i));
      rows += task.wanted.size();
    }
    RC_ASSERT(std::is_sorted(part.tasks.begin(), part.tasks.end(),
                             [](const Task& a, const Task& b) { return a.place(0) < b.place(0); }));
  }
  RC_ASSERT(splits.size() == 1U);
  RC_ASSERT(places.size() == rows);
  RC_ASSERT(*places.begin() == 1U && *places.rbegin() == rows);
}

TEST(Shard, TheSplitDoesNotDependOnThreads) {
  const toy::ToyOperator op;
  auto plan = plan_of(op, "8:128:+8");
  const Settings settings;
  const Part one = part_of(plan, {.index = 2, .count = 3}, settings);
  for (PlannedCase& planned : plan) planned.point.threads = 64;
  const Part many = part_of(plan, {.index = 2, .count = 3}, settings);
  EXPECT_EQ(one.split, many.split);
  ASSERT_EQ(one.tasks.size(), many.tasks.size());
  for (std::size_t i = 0; i < one.tasks.size(); ++i) {
    EXPECT_EQ(one.tasks[i].first_place, many.tasks[i].first_place);
    EXPECT_EQ(one.tasks[i].wanted, many.tasks[i].wanted);
  }
  // Another plan, or another number of parts, is another split.
  plan.pop_back();
  EXPECT_NE(part_of(plan, {.index = 2, .count = 3}, settings).split, one.split);
  EXPECT_NE(part_of(plan, {.index = 2, .count = 4}, settings).split, one.split);
}

TEST(Shard, AGroupOfPairedPointsStaysInOnePart) {
  const toy::ToyOperator op;
  SweepEntry entry{.op = &op, .label = "", .axes = {}, .where = ""};
  const std::vector<AxisText> typed{
      {"size", "8,16,1000000", "--size"}, {"gain", "1:5:+1", "--gain"}, {"paired", "size", ""}};
  override_axes(entry, typed);
  const auto plan = plan_cases(std::vector{entry}, 1);
  std::set<double> gains;
  for (int index = 1; index <= 3; ++index) {
    const Part part = part_of(plan, {.index = index, .count = 3}, {});
    for (const auto& group : groups_of(std::span(part.tasks))) {
      EXPECT_EQ(group.size(), 3U);
      EXPECT_TRUE(gains.insert(group[0].planned.point.real("gain")).second);
    }
  }
  EXPECT_EQ(gains.size(), 5U);
  EXPECT_THROW((void)part_of(plan, {.index = 1, .count = 6}, {}), InputError);
}

TEST(Shard, NoMorePartsThanPoints) {
  const toy::ToyOperator op;
  const auto plan = plan_of(op, "8,16");
  EXPECT_EQ(part_of(plan, {.index = 2, .count = 2}, {}).tasks.size(), 1U);
  EXPECT_THROW((void)part_of(plan, {.index = 1, .count = 3}, {}), InputError);
}

}  // namespace
}  // namespace katt::bench
