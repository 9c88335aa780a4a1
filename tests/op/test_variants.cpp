#include <gtest/gtest.h>

#include <string>

#include "op/variants.hpp"
#include "tests/message_of.hpp"

namespace katt {
namespace {

struct Arguments {
  int length = 0;
};
using Exec = Kokkos::DefaultHostExecutionSpace;
using Table = VariantTable<Exec, Arguments>;

Variant<Exec, Arguments> variant_named(const std::string& name) {
  Variant<Exec, Arguments> variant;
  variant.name = name;
  variant.supports = [](const Exec&, const Arguments& arguments) {
    return arguments.length > 8 ? Status::skipped("longer than 8") : Status::ok();
  };
  return variant;
}

TEST(VariantTable, FindsByNameAndKeepsTheOrder) {
  Table table{};
  table.add(variant_named("naive"));
  table.add(variant_named("flash"));
  ASSERT_EQ(table.all().size(), 2U);
  EXPECT_EQ(table.all().front().name, "naive");
  EXPECT_EQ(table.find("flash").name, "flash");
}

TEST(VariantTable, ATakenNameIsRefused) {
  Table table{};
  table.add(variant_named("naive"));
  EXPECT_THROW(table.add(variant_named("naive")), InputError);
  EXPECT_EQ(table.all().size(), 1U);
}

TEST(VariantTable, AnUnknownNameListsTheKnownOnes) {
  Table table{};
  table.add(variant_named("naive"));
  table.add(variant_named("flash"));
  EXPECT_EQ(test::message_of([&] { (void)table.find("fast"); }),
            "variant fast: unknown; expected one of auto, naive, flash");
}

TEST(VariantTable, AVariantMaySayWhatItComputesWith) {
  Table table{};
  table.add(variant_named("naive"));
  auto flash = variant_named("flash");
  flash.engine = [](const Exec&, const Arguments& arguments) {
    return arguments.length > 4 ? "amx" : "avx512";
  };
  table.add(flash);
  EXPECT_EQ(table.call(Exec(), {5}, {"naive", {}}).engine(), "");
  EXPECT_EQ(table.call(Exec(), {5}, {"flash", {}}).engine(), "amx");
  EXPECT_EQ(table.call(Exec(), {4}, {"flash", {}}).engine(), "avx512");
}

/// Two numbers, as an operator of its own names them.
struct Block {
  int rows, columns;
  Block(const Setting& setting) : rows(setting.at(0)), columns(setting.at(1)) {}  // NOLINT
};

TEST(VariantTable, PropertiesAreValuesOrFunctionsOfWhatTheyNeed) {
  int ran = 0;
  const Table table{
      {.name = "naive", .description = "", .run = [&](const Exec&, const Arguments&) { ran = 1; }},
      {.name = "blocked",
       .description = "",
       .rank = 1,
       .parameters = {"rows", "columns"},
       .settings = {{8, 4}, {16, 2}},
       .default_setting =
           [](const Arguments& arguments) {
             return Setting{arguments.length, 2};
           },
       .workspace_bytes = [](const Exec&, const Arguments&,
                             Block block) { return static_cast<std::size_t>(block.columns); },
       .run = [&](const Exec&, const Arguments&, Block block, Workspace) { ran = block.rows; },
       .engine = "amx"}};
  EXPECT_TRUE(table.run(Exec(), {1}, {"naive", {}}, {}).is_ok());
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(table.workspace_bytes(Exec(), {1}, {"naive", {}}), 0U);
  EXPECT_EQ(table.workspace_bytes(Exec(), {1}, {"blocked", {8, 4}}), 4U);
  EXPECT_EQ(table.resolve(Exec(), {16}, {"blocked", {}}).setting, (Setting{16, 2}));
  EXPECT_EQ(table.call(Exec(), {1}, {"blocked", {}}).engine(), "amx");
  const Workspace workspace(&ran, 4);
  EXPECT_TRUE(table.run(Exec(), {1}, {"blocked", {8, 4}}, workspace).is_ok());
  EXPECT_THROW((void)table.run(Exec(), {1}, {"blocked", {8, 4}}, {}), InputError);  // too small
  EXPECT_EQ(ran, 8);
  EXPECT_EQ(table.supports(Exec(), {1}, {"blocked", {8, 5}}).reason(),
            "tile 8x5 is not among those of blocked: 8x4, 16x2");
  EXPECT_EQ(table.supports(Exec(), {1}, {"naive", {8, 4}}).reason(), "variant naive takes no tile");
}

TEST(VariantTable, AutoIsTheHighestRankThatAccepts) {
  Table table{};
  const auto add = [&](const char* name, auto rank, int longest) {
    Variant<Exec, Arguments> variant;
    variant.name = name;
    variant.rank = rank;
    variant.supports = [longest](const Arguments& arguments) {
      return arguments.length > longest ? Status::skipped("too long") : Status::ok();
    };
    table.add(variant);
  };
  const auto chosen = [&](int length, const char* name = "auto") {
    return table.resolve(Exec(), {length}, {name, {}}).variant;
  };
  add("naive", 0, 100);
  add("fused", 1, 50);
  add(
      "stream", [](const Arguments& arguments) { return arguments.length > 20 ? 2 : 0; }, 30);
  table.add(
      {.name = "mine", .description = "says no rank", .run = [](const Exec&, const Arguments&) {}});
  EXPECT_EQ(chosen(10), "fused");
  EXPECT_EQ(chosen(10, ""), "fused");
  EXPECT_EQ(chosen(25), "stream");
  EXPECT_EQ(chosen(40), "fused");
  EXPECT_EQ(chosen(90), "naive") << "before one of the same rank that came later";
  EXPECT_EQ(chosen(101), "mine");
  EXPECT_EQ(chosen(40, "stream"), "stream") << "what is named is what is meant";
  EXPECT_THROW(add("auto", 1, 1), InputError);
}

TEST(VariantTable, AutoThatNothingAcceptsIsRefusedAsTheFastest) {
  Table table{};
  table.add(variant_named("naive"));
  auto fast = variant_named("fast");
  fast.rank = 1;
  fast.supports = Status::skipped("never");
  table.add(fast);
  EXPECT_EQ(table.supports(Exec(), {9}, {}).reason(), "never");
  EXPECT_TRUE(table.supports(Exec(), {8}, {}).is_ok());
}

TEST(VariantTable, ARefusalHasItsReason) {
  const auto variant = variant_named("naive");
  EXPECT_TRUE(variant.check(Exec(), {4}, {}).is_ok());
  const Status refused = variant.check(Exec(), {9}, {});
  EXPECT_EQ(refused.code(), Status::Code::skipped);
  EXPECT_EQ(refused.name(), "skipped");
  EXPECT_EQ(refused.reason(), "longer than 8");
  EXPECT_EQ(Status::failed("x").name(), "failed");
  EXPECT_EQ(Status().name(), "ok");
}

}  // namespace
}  // namespace katt
