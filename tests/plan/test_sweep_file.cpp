#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "plan/sweep_file.hpp"
#include "plan/tuning.hpp"
#include "tests/message_of.hpp"
#include "tests/op/toy_operator.hpp"
#include "tests/temporary_folder.hpp"

namespace katt::bench {
namespace {

class SweepFile : public ::testing::Test {
 protected:
  SweepFile() { registry.add(std::make_unique<toy::ToyOperator>()); }

  SweepRequest read(const std::string& text) {
    std::ofstream(path) << text;
    return read_sweep_file(path, registry);
  }

  /// The message without the file's name.
  std::string rejection(const std::string& text) {
    const std::string name = path.string();
    const std::string message = test::message_of([&] { return plan_cases(read(text).entries, 1); });
    return message.starts_with(name) ? message.substr(name.size()) : message;
  }

  Registry registry;
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder / "sweep.toml";
};

TEST_F(SweepFile, OneSweepAtTheTopLevel) {
  const SweepRequest request = read(R"(
title = "sizes"
op = "toy"
rounds = 9
budget_s = 0.5
n = "2:8:x2"
dtype = ["f32", "bf16"]
)");
  EXPECT_EQ(request.title, "sizes");
  EXPECT_EQ(request.settings.rounds, 9);
  EXPECT_EQ(request.settings.budget_s, 0.5);
  const auto plan = plan_cases(request.entries, 1);
  ASSERT_EQ(plan.size(), 6U);
  EXPECT_EQ(plan[0].point.dtype, Dtype::f32);
  EXPECT_EQ(plan[1].point.integer("size"), 4);
  EXPECT_EQ(plan[1].point.integer("twin"), 4) << "an axis that follows another";
  EXPECT_EQ(plan[5].point.dtype, Dtype::bf16);
  EXPECT_EQ(plan[0].configs.size(), 4U) << "every variant, the default tile";
}

TEST_F(SweepFile, EntriesTakeDefaultsAndReplaceThem) {
  const SweepRequest request = read(R"(
gain = 2.5
label = "first"
[axes]
size = [2, 4]
variant = "naive"
[[sweep]]
op = "toy"
[[sweep]]
op = "toy"
label = "second"
n = 6
order = "columns"
)");
  const auto plan = plan_cases(request.entries, 1);
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[0].label, "first");
  EXPECT_EQ(plan[2].label, "second");
  EXPECT_EQ(plan[2].point.integer("size"), 6);
  EXPECT_EQ(plan[2].point.real("gain"), 2.5);
  EXPECT_EQ(plan[2].point.choice("order"), "columns");
}

TEST_F(SweepFile, RejectsWithPlaceAndNearestKeys) {
  EXPECT_EQ(rejection("op = \"toy\"\nsiz = 4\n"), ":2: key \"siz\" is unknown; did you mean size?");
  EXPECT_EQ(rejection("[[sweep]]\nop = \"toy\"\ngian = 4\n"),
            ":3: key \"gian\" is unknown; did you mean gain?");
  EXPECT_EQ(rejection("op = \"toi\"\n"),
            ":1: operator toi: unknown; did you mean toy? expected toy");
  EXPECT_EQ(rejection("size = 4\n"), ":1: key \"op\" is missing; expected one of toy");
  EXPECT_EQ(rejection("op = \"toy\"\nn = 0\n"),
            ":2: n 0: 0 is too small; expected an integer from 1 to 1000000000000");
  EXPECT_EQ(rejection("op = \"toy\"\nn = 3\n"), ":1: size: expected an even number");
  EXPECT_EQ(rejection("op = \"toy\"\nn = nan\n"),
            ":2: n nan: \"nan\" is not an integer; expected an integer from 1 to 1000000000000");
  EXPECT_TRUE(rejection("op = \"toy\"\nn = 2\nsize = 4\n").find("names the same axis as") !=
              std::string::npos);
  EXPECT_TRUE(rejection("op = \"toy\"\nn = [2,\n").starts_with(":2: not valid TOML"));
  const std::string entry = "[[sweep]]\nop = \"toy\"\nlabel = \"" + std::string(64, 'x');
  EXPECT_TRUE(test::contains(rejection(entry + "1\"\n" + entry + "2\"\n"),
                             ":6: label: begins with the same 64 bytes, which result files hold"));
  for (const char* bad :
       {"op = 3", "op = \"toy\"\nn = []", "op = \"toy\"\nn = [[2]]", "op = \"toy\"\nn = {a = 1}",
        "op = \"toy\"\nrounds = 0", "op = \"toy\"\nbudget_s = -1", "op = \"toy\"\ntitle = 3",
        "op = \"toy\"\nn = 1979-05-27", "op = \"toy\"\n[axes]\nrounds = 3", "sweep = 3",
        "sweep = []", "op = \"toy\"\nvariant = \"turbo\"",
        "op = \"toy\"\ntile = \"8x8\"\ntile_q = 8"}) {
    EXPECT_FALSE(rejection(bad).empty()) << bad;
    EXPECT_FALSE(test::contains(rejection(bad), "\n")) << bad;
  }
  EXPECT_THROW((void)read_sweep_file("/nonexistent/sweep.toml", registry), InputError);
}

TEST_F(SweepFile, LongPlansAreRefusedBeforeTheyAreMade) {
  EXPECT_EQ(rejection("op = \"toy\"\nn = \"2:20000:+2\"\ntwin = \"1:10000:+1\"\n"
                      "gain = \"0.01:100:+0.01\"\n"),
            "the sweep has more than 1000000 points");
  const std::string twice = "[[sweep]]\nop = \"toy\"\nn = [2, 4]\n";
  const auto entries =
      read(twice + twice + "gain = [0.5, 1.5]\n").entries;  // two points, four more
  EXPECT_EQ(plan_cases(entries, 1, {}, 6).size(), 6U);
  EXPECT_THROW((void)plan_cases(entries, 1, {}, 5), InputError);
}

TEST_F(SweepFile, TheCommandLineReplacesAxesOfTheFile) {
  SweepRequest request =
      read("op = \"toy\"\nn = 2\nvariant = \"tiled\"\ntile_q = [8, 16]\ntile_kv = 8\n");
  EXPECT_EQ(plan_cases(request.entries, 1)[0].configs.size(), 2U);
  const std::vector<AxisText> typed{{"size", "4,6", "--size"}, {"tile", "auto", "--tile"}};
  override_axes(request.entries[0], typed);
  const auto plan = plan_cases(request.entries, 1);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].point.integer("size"), 4);
  ASSERT_EQ(plan[0].configs.size(), 1U);
  EXPECT_EQ(plan[0].configs[0].setting, Setting{});
}

TEST_F(SweepFile, TilesApplyToVariantsThatHaveThem) {
  const auto configs = [&](const std::string& lines) {
    const SweepRequest request = read("op = \"toy\"\nvariant = [\"naive\", \"tiled\"]\n" + lines);
    std::vector<std::string> texts;
    const auto plan = plan_cases(request.entries, 1);
    for (const Config& config : plan[0].configs) {
      texts.push_back(config.variant + " " + to_text(config.setting));
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(configs(""), (Texts{"naive auto", "tiled auto"}));
  EXPECT_EQ(configs("tile = \"8x8,4x4\""), (Texts{"naive auto", "tiled 8x8", "tiled 4x4"}));
  EXPECT_EQ(configs("tile_q = [8, 4]\ntile_kv = 8"),
            (Texts{"naive auto", "tiled 8x8", "tiled 4x8"}));
  EXPECT_EQ(configs("tile_q = 16"), (Texts{"naive auto", "tiled 16x8"}));
  EXPECT_EQ(configs("tile_kv = [8, 2]"),
            (Texts{"naive auto", "tiled 8x8", "tiled 16x8", "tiled *x2"}));
}

TEST_F(SweepFile, PointsAlongPairedAxesAreGroups) {
  const auto plan = [&](const std::string& lines) {
    return plan_cases(read("op = \"toy\"\n" + lines).entries, 1);
  };
  const auto cases = plan(R"(
n = [8, 16]
gain = [1, 2, 3]
dtype = ["f32", "bf16"]
paired = ["n"]
)");
  ASSERT_EQ(cases.size(), 12U);
  const auto groups = groups_of(std::span(cases));
  ASSERT_EQ(groups.size(), 6U);
  for (const auto& group : groups) {
    ASSERT_EQ(group.size(), 2U);
    EXPECT_EQ(group[0].paired.to, "size=8");
    EXPECT_TRUE(group[0].paired.is_reference && !group[1].paired.is_reference);
    EXPECT_EQ(group[0].point.real("gain"), group[1].point.real("gain"));
    EXPECT_EQ(group[1].point.integer("twin"), 16) << "it follows the paired axis";
  }
  const auto unpaired = plan("n = [8, 16]");
  EXPECT_EQ(groups_of(std::span(unpaired)).size(), 2U);

  const auto named = plan("n = [8, 16, 32]\ngain = [1, 2]\npaired = \"size=16,gain\"\n");
  ASSERT_EQ(groups_of(std::span(named)).size(), 1U);
  EXPECT_EQ(named[0].paired.to, "size=16,gain=1");
  for (const PlannedCase& one : named) {
    EXPECT_EQ(one.paired.is_reference,
              one.point.integer("size") == 16 && one.point.real("gain") == 1);
  }

  for (const auto& [bad, said] : std::map<std::string, std::string>{
           {"n = 8\npaired = \"gain\"", "paired gain: the sweep has no values of such an axis"},
           {"n = 8\npaired = \"nn\"", "paired nn: the sweep has no values of such an axis"},
           {"n = 8\npaired = \"variant\"", "paired variant: the sweep has no values"},
           {"threads = [1, 2]\npaired = \"threads\"", "threads: cannot change from round to round"},
           {"n = [8, 16]\npaired = \"n=32\"",
            "n=32: is not a value of the sweep; expected one of 8, 16"},
           {"n = [8, 16]\npaired = \"n=x\"", "\"x\" is not an integer"},
           {"n = [8, 16]\npaired = \"n=8,n=16\"",
            "n: names size twice, expected each axis once"}}) {
    EXPECT_TRUE(test::contains(rejection("op = \"toy\"\n" + bad), said));
  }
  const std::string twice =
      "[[sweep]]\nop = \"toy\"\nn = 8\n[[sweep]]\nop = \"toy\"\nn = [8, 16]\n";
  EXPECT_TRUE(test::contains(rejection(twice + "paired = \"n\"\n"), "expected a label of its own"));
  EXPECT_EQ(plan_cases(read(twice + "label = \"own\"\npaired = \"n\"\n").entries, 1).size(), 3U);
}

TEST_F(SweepFile, AutoIsPlannedAsTheVariantThatItMeans) {
  const auto names = [&](const std::string& lines) {
    std::vector<std::string> texts;
    for (const PlannedCase& planned : plan_cases(read("op = \"toy\"\n" + lines).entries, 1)) {
      for (const Config& config : planned.configs) {
        texts.push_back(config.variant + " " + to_text(config.setting));
      }
    }
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(names("variant = \"auto\"\nn = [8, 16]"), (Texts{"naive auto", "tiled auto"}));
  EXPECT_EQ(names("variant = \"tiled,auto,naive\"\nn = 16"), (Texts{"tiled auto", "naive auto"}))
      << "each once";
  EXPECT_EQ(names("variant = \"auto\"\nn = 16\ntile = \"16x8\""), (Texts{"tiled 16x8"}));
}

}  // namespace
}  // namespace katt::bench
