#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "machine/machine.hpp"
#include "plan/tuning.hpp"
#include "sweep/fastest_tiles.hpp"
#include "tests/op/toy_operator.hpp"

namespace katt::bench {
namespace {

class TuningTest : public ::testing::Test {
 protected:
  TuningTest()
      : folder(std::filesystem::temp_directory_path() /
               ("katt_tuning_" + std::to_string(getpid()))),
        path(folder / "deep" / "tuning.json") {
    std::filesystem::create_directory(folder);
  }
  ~TuningTest() override { std::filesystem::remove_all(folder); }

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
    t.time_s = 1e-3;
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
    try {
      (void)Tuning::read(folder / "bad.json");
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path folder, path;
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
  EXPECT_EQ(tile.time_s, 1e-3);
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

TEST_F(TuningTest, RefusesOtherFiles) {
  for (const char* text : {"", "{", "[]", "{\"schema\": 2, \"tiles\": []}", "{\"schema\": 1}",
                           "{\"schema\": 1, \"tiles\": [{}]}", "{\"schema\": 1, \"tiles\": [7]}"}) {
    EXPECT_NE(refusal(text).find("bad.json: is no tuning file"), std::string::npos) << text;
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

RowResult row(Setting tile, double median, double half_width, Status status = Status::ok()) {
  RowResult r;
  r.requested = r.resolved = {"tiled", tile};
  r.default_setting = {8, 8};
  r.status = std::move(status);
  r.time_s = {median, median - half_width, median + half_width};
  return r;
}

TEST_F(TuningTest, TheDefaultStaysUnlessATileIsClearlyFaster) {
  PlannedCase planned;
  planned.op = &op;
  planned.point = point(16);
  const auto chosen = [&](std::vector<RowResult> rows) {
    const auto tiles = fastest_tiles(planned, rows);
    return tiles.empty() ? Setting{} : tiles.front().tile;
  };
  EXPECT_EQ(chosen({row({8, 8}, 2.0, 0.1), row({16, 8}, 1.0, 0.1)}), (Setting{16, 8}));
  EXPECT_EQ(chosen({row({8, 8}, 1.1, 0.1), row({16, 8}, 1.0, 0.1)}), (Setting{8, 8}));
  EXPECT_EQ(chosen({row({8, 8}, 2.0, 0.1), row({16, 8}, 1.0, 0.1, Status::failed("wrong"))}),
            (Setting{8, 8}));
  EXPECT_EQ(chosen({row({8, 8}, 2.0, 0.1, Status::skipped("no")), row({16, 8}, 3.0, 0.1)}),
            (Setting{16, 8}));
  EXPECT_EQ(chosen({}), Setting{});
}

}  // namespace
}  // namespace katt::bench
