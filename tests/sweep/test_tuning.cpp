#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "machine/machine.hpp"
#include "plan/tuning.hpp"
#include "sweep/fastest_tiles.hpp"
#include "tests/message_of.hpp"
#include "tests/op/toy_operator.hpp"
#include "tests/temporary_folder.hpp"

namespace katt::bench {
namespace {

class TuningTest : public ::testing::Test {
 protected:
  TunedTile tuned(std::int64_t size, Setting tile) const {
    TunedTile t;
    t.op = "toy";
    t.pass = "forward";
    t.variant = "tiled";
    t.device = device_name(Backend::openmp);
    t.backend = Backend::openmp;
    t.threads = 2;
    t.axes = {{"size", size}, {"twin", size}, {"gain", 1.0}, {"order", std::string("rows")}};
    t.tile = tile;
    t.usual = {8, 8};
    t.time_s = {1e-3, 0.9e-3, 1.2e-3};
    t.usual_time_s = 2e-3;
    return t;
  }
  Point point(std::int64_t size) const {
    Point p;
    p.threads = 2;
    p.values = tuned(size, {}).axes;
    return p;
  }
  std::string refusal(const std::string& text) const {
    std::ofstream(folder / "bad.json") << text;
    return test::message_of([&] { (void)Tuning::read(folder / "bad.json"); });
  }

  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "deep" / "tuning.json";
  toy::ToyOperator op;
};

TEST_F(TuningTest, GivesTheTileOfTheNearestPoint) {
  Tuning tuning;
  tuning.put(tuned(16, {8, 8}));
  tuning.put(tuned(1024, {16, 8}));
  EXPECT_EQ(tuning.find(op, point(20), "tiled"), (Setting{8, 8}));
  EXPECT_EQ(tuning.find(op, point(4000), "tiled"), (Setting{16, 8}));
  EXPECT_EQ(tuning.find(op, point(16), "naive"), std::nullopt);
  Point other = point(16);
  other.threads = 1;
  EXPECT_EQ(tuning.find(op, other, "tiled"), std::nullopt);
  other = point(16);
  other.dtype = Dtype::bf16;
  EXPECT_EQ(tuning.find(op, other, "tiled"), std::nullopt);
}

TEST_F(TuningTest, ALaterTileReplacesAnEarlierOneOfTheSamePoint) {
  Tuning tuning;
  tuning.put(tuned(16, {8, 8}));
  tuning.put(tuned(16, {16, 8}));
  EXPECT_EQ(tuning.all().size(), 1U);
  EXPECT_EQ(tuning.find(op, point(16), "tiled"), (Setting{16, 8}));
}

TEST_F(TuningTest, AFileHoldsEverything) {
  const TunedTile written = tuned(16, {16, 8});
  Tuning::update(path, std::span(&written, 1));
  const Tuning read = Tuning::read(path);
  ASSERT_EQ(read.all().size(), 1U);
  const TunedTile& tile = read.all().front();
  EXPECT_EQ(tile.axes, written.axes);
  EXPECT_EQ(tile.usual, (Setting{8, 8}));
  EXPECT_EQ(tile.time_s.median, 1e-3);
  EXPECT_EQ(tile.usual_time_s, 2e-3);
  EXPECT_EQ(read.find(op, point(16), "tiled"), (Setting{16, 8}));
  EXPECT_TRUE(Tuning::read(folder / "missing.json").all().empty());
}

TEST_F(TuningTest, AFileKeepsWhatIsThere) {
  for (const auto& tile : {tuned(16, {16, 8}), tuned(32, {8, 8}), tuned(16, {8, 8})}) {
    Tuning::update(path, std::span(&tile, 1));
  }
  const Tuning read = Tuning::read(path);
  EXPECT_EQ(read.all().size(), 2U);
  EXPECT_EQ(read.find(op, point(16), "tiled"), (Setting{8, 8}));
  EXPECT_EQ(read.find(op, point(32), "tiled"), (Setting{8, 8}));
}

TEST_F(TuningTest, AFileTellsMachineCodeAndInterval) {
  TunedTile written = tuned(16, {16, 8});
  written.machine = "a machine";
  written.code = "0123456789abcdef";
  written.usual_ratio = 1.5;
  Tuning::update(path, std::span(&written, 1));
  const TunedTile tile = Tuning::read(path).all().front();
  EXPECT_EQ(tile.machine, "a machine");
  EXPECT_EQ(tile.code, "0123456789abcdef");
  EXPECT_EQ(tile.time_s.lo, 0.9e-3);
  EXPECT_EQ(tile.time_s.hi, 1.2e-3);
  EXPECT_EQ(tile.usual_ratio, 1.5);
  // One sample bounds nothing, and JSON has no infinity.
  written.time_s = median_interval(std::vector<double>{1e-3});
  Tuning::update(path, std::span(&written, 1));
  EXPECT_TRUE(std::isinf(Tuning::read(path).all().front().time_s.hi));
}

TEST_F(TuningTest, TellsWhatIsStale) {
  const auto remark = [&](const TunedTile& tile) {
    Tuning tuning;
    tuning.put(tile);
    return tuning.remark(op, point(16), "tiled");
  };
  TunedTile tile = tile_key(op, point(16), "tiled");
  tile.tile = {16, 8};
  EXPECT_EQ(remark(tile), "");
  TunedTile other_code = tile;
  other_code.code = "0123456789abcdef";
  EXPECT_EQ(
      remark(other_code),
      "toy forward tiled f32: the tile is stale, tuned with another code (0123456789abcdef, here "
      "not recorded); katt tune toy measures again");
  TunedTile old = tile;
  old.machine.clear();
  EXPECT_TRUE(
      test::contains(remark(old), "stale, tuned with another machine (not recorded, here "));
  TunedTile elsewhere = tile;
  elsewhere.device = "Another CPU";
  EXPECT_TRUE(
      test::contains(remark(elsewhere), "tuned on another machine only (Another CPU, here "));
  TunedTile other_kernel = elsewhere;
  other_kernel.threads = 1;
  EXPECT_EQ(remark(other_kernel), "") << "nobody tuned this one";
}

TEST_F(TuningTest, APlanTellsAStaleTileOnce) {
  Tuning tuning;
  tuning.put(tuned(16, {16, 8}));  // no machine, as in files of earlier versions
  std::vector<SweepEntry> entries{{.op = &op, .label = "", .axes = {}, .where = ""}};
  entries[0].axes = {{"variant", "tiled", "--variant"},
                     {"threads", "2", "--threads"},
                     {"size", "16,32", "--size"},
                     {"tile", "auto", "--tile"}};
  const auto plan = plan_cases(entries, 1, tuning);
  EXPECT_EQ(plan.at(1).configs.at(0).setting, (Setting{16, 8})) << "it is used all the same";
  EXPECT_EQ(remarks_of(plan).size(), 1U);
  entries[0].axes.pop_back();
  EXPECT_TRUE(remarks_of(plan_cases(entries, 1, tuning)).empty());
}

TEST_F(TuningTest, RefusesOtherFiles) {
  for (const char* text : {"", "{", "[]", "{\"schema\": 2, \"tiles\": []}", "{\"schema\": 1}",
                           "{\"schema\": 1, \"tiles\": [{}]}", "{\"schema\": 1, \"tiles\": [7]}"}) {
    EXPECT_TRUE(test::contains(refusal(text), "bad.json: is no tuning file")) << text;
  }
  const TunedTile without_extent = tuned(16, {0, 8});
  Tuning::update(path, std::span(&without_extent, 1));
  EXPECT_THROW((void)Tuning::read(path), InputError);
}

TEST_F(TuningTest, AutoInAPlanIsTheTunedTile) {
  Tuning tuning;
  tuning.put(tuned(16, {16, 8}));
  std::vector<SweepEntry> entries{{.op = &op, .label = "", .axes = {}, .where = ""}};
  const auto tile_in = [&](const char* text) {
    entries[0].axes = {{"variant", "tiled", "--variant"}, {"threads", "2", "--threads"}};
    if (text != nullptr) entries[0].axes.push_back({"tile", text, "--tile"});
    const auto plan = plan_cases(entries, 1, tuning);
    return plan.at(0).configs;
  };
  EXPECT_EQ(tile_in("auto").at(0).setting, (Setting{16, 8}));
  EXPECT_TRUE(asks_for_tuning(entries));
  EXPECT_EQ(tile_in("auto,16x8").size(), 1U) << "the same tile twice";
  EXPECT_EQ(tile_in(nullptr).at(0).setting, Setting{})
      << "the default, where nothing was asked for";
  EXPECT_FALSE(asks_for_tuning(entries));
}

TEST_F(TuningTest, AllTilesAreAskedForUnlessSomeAreNamed) {
  Registry registry;
  std::vector<SweepEntry> entries{{.op = &op, .label = "", .axes = {}, .where = ""}};
  ask_for_all_tiles(entries, registry);
  EXPECT_EQ(plan_cases(entries, 1).at(0).configs.size(), 2U);
  entries[0].axes = {{"tile", "8x8", "--tile"}};
  ask_for_all_tiles(entries, registry);
  EXPECT_EQ(plan_cases(entries, 1).at(0).configs.size(), 1U);
  op.behaviours = {{"naive", {}}};
  entries[0].axes.clear();
  EXPECT_THROW(ask_for_all_tiles(entries, registry), InputError);
}

/// A row with `samples` by round.
RowResult row(Setting tile, std::vector<double> samples, Status status = Status::ok()) {
  RowResult r;
  r.requested = r.resolved = {"tiled", tile};
  r.default_setting = {8, 8};
  r.status = std::move(status);
  r.time_s = median_interval(samples);
  r.samples_s = std::move(samples);
  return r;
}

TEST_F(TuningTest, TheDefaultStaysUnlessATileIsClearlyFaster) {
  PlannedCase planned;
  planned.op = &op;
  planned.point = point(16);
  const auto chosen = [&](std::vector<RowResult> rows) {
    const auto tiles = fastest_tiles(planned, rows, false);
    return tiles.empty() ? Setting{} : tiles.front().tile;
  };
  const std::vector<double> one{1.0, 1.1, 1.2}, two{2.0, 2.2, 2.4}, noisy{1.3, 1.05, 1.25};
  EXPECT_EQ(chosen({row({8, 8}, two), row({16, 8}, one)}), (Setting{16, 8}));
  EXPECT_EQ(chosen({row({8, 8}, noisy), row({16, 8}, one)}), (Setting{8, 8}));
  EXPECT_EQ(chosen({row({8, 8}, two), row({16, 8}, one, Status::failed("wrong"))}),
            (Setting{8, 8}));
  EXPECT_EQ(chosen({row({8, 8}, two, Status::skipped("no")), row({16, 8}, one)}), (Setting{16, 8}));
  EXPECT_EQ(chosen({}), Setting{});
}

TEST_F(TuningTest, ATileThatLeftARaceIsNotChosen) {
  PlannedCase planned;
  planned.op = &op;
  planned.point = point(16);
  std::vector<RowResult> rows{row({8, 8}, {1.2, 1.2}), row({16, 8}, {1.0, 1.1, 1.3})};
  rows[0].left_race = true;
  const std::vector<TunedTile> tiles = fastest_tiles(planned, rows, true);
  ASSERT_EQ(tiles.size(), 1U);
  EXPECT_EQ(tiles[0].tile, (Setting{16, 8}));
  EXPECT_NEAR(tiles[0].usual_ratio, (1.2 / 1.0 + 1.2 / 1.1) / 2, 1e-12) << "of the rounds of both";
  EXPECT_EQ(tiles[0].time_s.median, 1.1);
  EXPECT_EQ(tiles[0].machine, machine_text(Backend::openmp));

  // A race that ends with all tiles has its rule, too: 1 % and no proof.
  const std::vector<RowResult> all{row({8, 8}, {1.3, 1.05, 1.25}), row({16, 8}, {1.0, 1.1, 1.2})};
  EXPECT_EQ(fastest_tiles(planned, all, false)[0].tile, (Setting{8, 8}));
  EXPECT_EQ(fastest_tiles(planned, all, true)[0].tile, (Setting{16, 8}));
}

}  // namespace
}  // namespace katt::bench
