#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "memory/tracker.hpp"
#include "record/results.hpp"
#include "record/t4.hpp"
#include "sweep/race/race_replay.hpp"
#include "sweep/sweep.hpp"
#include "tests/op/toy_operator.hpp"

namespace katt::bench {
namespace {

class SettingRaces : public ::testing::Test {
 protected:
  SettingRaces() {
    memory::install();
    auto owned = std::make_unique<toy::ToyOperator>();
    op = owned.get();
    op->behaviours = {{"naive", {}}, {"tiled", {}}, {"wrong", {.wrong = true}}};
    registry.add(std::move(owned));
    request.entries = {{.op = op, .label = "", .axes = {}, .where = ""}};
    request.entries[0].axes = {{"tile", "8x8,16x8", "--tile"}, {"threads", "1", "--threads"}};
    request.settings.race = true;
    options.measure_ceilings = false;
  }

  /// The rows of the only case.
  std::vector<RowResult> sweep() {
    std::vector<RowResult> kept;
    options.finished = [&](const PlannedCase& planned, std::span<const RowResult> rows) {
      kept.assign(rows.begin(), rows.end());
      point = planned;
    };
    Progress silent(nullptr);
    const auto plan = plan_cases(request.entries, request.settings.seed);
    static_cast<void>(run_sweep(registry, request, plan, options, silent, stop));
    return kept;
  }
  std::vector<io::Row> as_rows(const std::vector<RowResult>& results) const {
    std::vector<io::Row> rows;
    for (const RowResult& result : results) {
      rows.push_back(make_row(columns(), point, result, {.run = "run-0001"}));
    }
    return rows;
  }
  std::vector<io::Column> columns() const { return result_columns(registry); }

  Registry registry;
  toy::ToyOperator* op = nullptr;
  SweepRequest request;
  SweepOptions options;
  PlannedCase point;
  StopFlag stop{false};
};

TEST_F(SettingRaces, ASlowTileIsMeasuredLessAndSaysWhy) {
  op->tile_run_s = {{{8, 8}, 1e-4}, {{16, 8}, 1e-2}};
  const std::vector<RowResult> rows = sweep();
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_FALSE(rows[0].left_race) << "naive has no tile: it does not race";
  EXPECT_FALSE(rows[1].left_race);
  ASSERT_TRUE(rows[2].left_race);
  EXPECT_EQ(rows[2].requested.setting, (Setting{16, 8}));
  EXPECT_TRUE(rows[2].status.is_ok());
  EXPECT_LT(rows[2].samples_s.size(), rows[1].samples_s.size());
  EXPECT_GE(rows[1].samples_s.size(), 7U);
  EXPECT_EQ(rows[0].samples_s.size(), rows[1].samples_s.size());
  EXPECT_EQ(rows[2].note.rfind("left the race: ", 0), 0U) << rows[2].note;
  EXPECT_NE(rows[2].note.find("x the time of 8x8 after "), std::string::npos) << rows[2].note;
  EXPECT_EQ(rows[3].status.name(), std::string("failed"));
}

TEST_F(SettingRaces, RoundsByNumberAreNoRace) {
  op->tile_run_s = {{{8, 8}, 1e-4}, {{16, 8}, 1e-2}};
  request.settings.rounds = 4;
  const std::vector<RowResult> rows = sweep();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(rows[i].left_race) << i;
    EXPECT_EQ(rows[i].samples_s.size(), 4U) << i;
  }
}

TEST_F(SettingRaces, RowsAreT4) {
  request.settings.rounds = 2;
  const std::vector<RowResult> results = sweep();
  const std::string text =
      t4_json(registry, columns(), as_rows(results),
              {{"started_at", std::string("2026-01-02T03:04:05Z")}, {"cores", std::int64_t{2}}});
  const nlohmann::json t4 = nlohmann::json::parse(text);
  EXPECT_EQ(t4.at("schema_version"), "1.0.0");
  EXPECT_EQ(t4.at("metadata").at("timeunit"), "milliseconds");
  EXPECT_EQ(t4.at("metadata").at("cores"), 2);
  const auto& list = t4.at("results");
  ASSERT_EQ(list.size(), 2U) << "rows of variants with parameters";
  const auto& first = list.at(0);
  EXPECT_EQ(first.at("configuration"), (nlohmann::json{{"tile_q", 8}, {"tile_kv", 8}}));
  EXPECT_EQ(first.at("invalidity"), "correct");
  EXPECT_EQ(first.at("correctness"), 1);
  EXPECT_EQ(first.at("timestamp"), "2026-01-02T03:04:05Z");
  EXPECT_EQ(first.at("objectives"), nlohmann::json{"time"});
  ASSERT_EQ(first.at("times").at("runtimes").size(), 2U);
  EXPECT_DOUBLE_EQ(first.at("times").at("runtimes").at(0), results[1].samples_s[0] * 1e3);
  EXPECT_EQ(first.at("measurements").at(0).at("name"), "time");
  EXPECT_EQ(first.at("measurements").at(0).at("unit"), "ms");
  EXPECT_EQ(first.at("problem").at("op"), "toy");
  EXPECT_EQ(first.at("problem").at("variant"), "tiled");
  EXPECT_EQ(first.at("problem").at("size"), 16);
}

TEST_F(SettingRaces, T4TellsWhyARowHasNoTime) {
  request.settings.rounds = 2;
  std::vector<RowResult> results = sweep();
  results[1].status = Status::skipped("no");
  results[2].status = Status::failed("3 of 9 checked values differ: out(0) is 1, expected 2");
  auto list =
      nlohmann::json::parse(t4_json(registry, columns(), as_rows(results), {})).at("results");
  EXPECT_EQ(list.at(0).at("invalidity"), "constraints");
  EXPECT_EQ(list.at(1).at("invalidity"), "correctness");
  EXPECT_EQ(list.at(1).at("correctness"), 0);
  EXPECT_TRUE(list.at(1).at("measurements").empty());
  results[2].status = Status::failed("out of memory");
  list = nlohmann::json::parse(t4_json(registry, columns(), as_rows(results), {})).at("results");
  EXPECT_EQ(list.at(1).at("invalidity"), "runtime");
}

/// A recorded space of two tiles, of which the second is as much slower as `ratio` says.
io::ResultContents recorded(const std::vector<io::Row>& rows, double ratio) {
  io::ResultContents contents;
  contents.rows = rows;
  for (io::Row& row : contents.rows) row.samples_s.clear();
  for (int round = 0; round < 60; ++round) {
    const double noise = 1 + 0.01 * ((round * 7) % 5);
    contents.rows[1].samples_s.push_back(1e-3 * noise);
    contents.rows[2].samples_s.push_back(1e-3 * ratio * (1 + 0.01 * ((round * 3) % 7)));
  }
  return contents;
}

TEST_F(SettingRaces, ReplaysTellWinnersAndCosts) {
  request.settings.rounds = 2;
  const std::vector<io::Row> rows = as_rows(sweep());
  const auto spaces = recorded_spaces(registry, columns(), recorded(rows, 1.3));
  ASSERT_EQ(spaces.size(), 1U);
  const RecordedSpace& space = spaces[0];
  EXPECT_EQ(space.name.rfind("toy forward tiled f32 threads=1", 0), 0U) << space.name;
  ASSERT_EQ(space.settings.size(), 2U);
  EXPECT_TRUE(space.settings[0].is_default);
  EXPECT_EQ(space.settings[0].loss, 1);
  EXPECT_NEAR(space.settings[1].loss, 1.3, 0.05);

  ReplayOptions replays;
  replays.replays = 20;
  const Replays done = replay(space, replays);
  ASSERT_EQ(done.race.winners.size(), 20U);
  ASSERT_EQ(done.exhaustive.winners.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(done.race.winners[i], 0U);
    EXPECT_EQ(done.exhaustive.winners[i], 0U);
    EXPECT_GT(done.race.cost_s[i], 0);
    EXPECT_LT(done.race.cost_s[i], done.exhaustive.cost_s[i]);
    EXPECT_GE(done.race.rounds[i], 7);
  }
  EXPECT_EQ(replay(space, replays).race.cost_s, done.race.cost_s) << "the same seed";
  replays.settings.seed = 2;
  EXPECT_NE(replay(space, replays).race.cost_s, done.race.cost_s);
}

TEST_F(SettingRaces, ASpaceNeedsEqualRounds) {
  request.settings.rounds = 2;
  io::ResultContents contents = recorded(as_rows(sweep()), 1.1);
  contents.rows[2].samples_s.pop_back();
  EXPECT_TRUE(recorded_spaces(registry, columns(), contents).empty());
  contents.rows[2].samples_s.push_back(0);
  EXPECT_TRUE(recorded_spaces(registry, columns(), contents).empty()) << "a sample of no time";
}

}  // namespace
}  // namespace katt::bench
