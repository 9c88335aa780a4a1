#include <gtest/gtest.h>

#include <string>

#include "core/variants.hpp"

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
  variant.supports = [](const Exec&, const Arguments& arguments, Tile) {
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
  try {
    (void)table.find("fast");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()), "variant fast: unknown; expected one of naive, flash");
  }
}

TEST(VariantTable, AVariantMaySayWhatItComputesWith) {
  Table table{};
  table.add(variant_named("naive"));
  auto flash = variant_named("flash");
  flash.engine = [](const Exec&, const Arguments& arguments, Tile) {
    return arguments.length > 4 ? "amx" : "avx512";
  };
  table.add(flash);
  EXPECT_EQ(table.engine(Exec(), {5}, {"naive", {}}), "");
  EXPECT_EQ(table.engine(Exec(), {5}, {"flash", {}}), "amx");
  EXPECT_EQ(table.engine(Exec(), {4}, {"flash", {}}), "avx512");
}

TEST(VariantTable, ARefusalHasItsReason) {
  const auto variant = variant_named("naive");
  EXPECT_TRUE(variant.supports(Exec(), {4}, {}).is_ok());
  const Status refused = variant.supports(Exec(), {9}, {});
  EXPECT_EQ(refused.code(), Status::Code::skipped);
  EXPECT_EQ(refused.name(), "skipped");
  EXPECT_EQ(refused.reason(), "longer than 8");
  EXPECT_EQ(Status::failed("x").name(), "failed");
  EXPECT_EQ(Status().name(), "ok");
}

}  // namespace
}  // namespace katt
