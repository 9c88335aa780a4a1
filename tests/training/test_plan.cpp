#include <gtest/gtest.h>

#include <vector>

#include <Kokkos_Core.hpp>

#include "core/error.hpp"
#include "tests/io/hdf5_builder.hpp"
#include "tests/nn/llama_tiny.hpp"
#include "training/checkpointing.hpp"
#include "training/data.hpp"
#include "training/schedule.hpp"

/// What a training run is planned with: rates, rows of data, checkpointing.
namespace katt {
namespace {

using nn::Recompute;
using test::message_of;
using training::Schedule;
using training::TokenData;

TEST(Schedule, RisesAndStays) {
  const Schedule constant{.rate = 0.5, .warmup = 4, .steps = 10};
  EXPECT_DOUBLE_EQ(constant.at(0), 0.125);
  EXPECT_DOUBLE_EQ(constant.at(3), 0.5);
  EXPECT_DOUBLE_EQ(constant.at(9), 0.5);
  EXPECT_DOUBLE_EQ((Schedule{.rate = 0.5}).at(0), 0.5);
}

TEST(Schedule, FallsAlongACosine) {
  const Schedule cosine{
      .kind = Schedule::Kind::cosine, .rate = 1.0, .final_rate = 0.2, .warmup = 1, .steps = 12};
  EXPECT_DOUBLE_EQ(cosine.at(0), 1.0);
  EXPECT_DOUBLE_EQ(cosine.at(1), 1.0);
  EXPECT_DOUBLE_EQ(cosine.at(6), 0.6);
  EXPECT_DOUBLE_EQ(cosine.at(11), 0.2);
  EXPECT_DOUBLE_EQ(cosine.at(20), 0.2);
}

TEST(TokenData, ShiftsTargetsAndBeginsAgain) {
  const TokenData data({0, 1, 2, 3, 4, 5, 6, 7}, 8, "test");  // two rows of three and their targets
  std::vector<std::int64_t> ids(9), targets(9);
  data.fill(1, 3, ids, targets);
  EXPECT_EQ(ids, (std::vector<std::int64_t>{3, 4, 5, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(targets, (std::vector<std::int64_t>{4, 5, 6, 1, 2, 3, 4, 5, 6}));
}

TEST(TokenData, RefusesWhatTheModelCannotRead) {
  const auto refuses = [](const std::vector<std::int32_t>& tokens) {
    return message_of<InputError>([&] { TokenData(tokens, 8, "test").check(3); });
  };
  EXPECT_NE(refuses({1, 8, 2, 3}).find("test: token 1 is 8, expected 0 to 7"), std::string::npos);
  EXPECT_NE(refuses({1, -1, 2, 3}).find("token 1 is -1"), std::string::npos);
  EXPECT_NE(refuses({1, 2, 3}).find("holds 3 tokens"), std::string::npos);
  EXPECT_EQ(refuses({1, 2, 3, 4}), "");
}

TEST(TokenData, ReadsFiles) {
  const test::TemporaryFolder folder;
  {
    test::Hdf5Builder file(folder / "tokens.h5");
    const std::vector<std::int64_t> tokens{5, 6, 7, std::int64_t{1} << 40};
    file.dataset("tokens", H5T_STD_I64LE, {3}, H5T_NATIVE_INT64, tokens.data());
    test::Hdf5Builder large(folder / "large.h5");
    large.dataset("tokens", H5T_STD_I64LE, {4}, H5T_NATIVE_INT64, tokens.data());
  }
  EXPECT_EQ(TokenData::from_hdf5(folder / "tokens.h5", 8).size(), 3);
  EXPECT_NE(message_of<InputError>([&] { (void)TokenData::from_hdf5(folder / "large.h5", 8); }),
            "");
  test::write_bytes(folder / "text", "a\xFF\n");
  EXPECT_EQ(TokenData::from_bytes(folder / "text", 256).size(), 3);
  EXPECT_NE(message_of<InputError>([&] { (void)TokenData::from_bytes(folder / "text", 128); }), "");
  EXPECT_NE(message_of<InputError>([&] { (void)TokenData::from_bytes(folder / "none", 256); }), "");
}

TEST(Checkpointing, ReadsWhichBlocks) {
  using enum Recompute;
  const auto parse = [](const std::string& text) {
    return training::parse_checkpointing("--checkpoint-blocks", text, 4);
  };
  EXPECT_EQ(parse("none"), (std::vector{nothing, nothing, nothing, nothing}));
  EXPECT_EQ(parse("all"), (std::vector{all, all, all, all}));
  EXPECT_EQ(parse("cheap"), (std::vector{cheap, cheap, cheap, cheap}));
  EXPECT_EQ(parse("every:3"), (std::vector{all, nothing, nothing, all}));
  EXPECT_EQ(parse("1,2"), (std::vector{nothing, all, all, nothing}));
  for (const char* bad : {"every:0", "every:x", "4", "-1", "1,,2", "some", "1;2"}) {
    EXPECT_NE(message_of<InputError>([&] { (void)parse(bad); }).find(bad), std::string::npos)
        << bad;
  }
}

TEST(Checkpointing, FitsABudget) {
  const nn::LlamaConfig config = test::small_config();
  const Kokkos::Serial exec;
  training::TrainOptions options{.shape = {.batch = 4, .seq = 64}};
  const auto bytes = [&](Recompute what) {
    options.recompute.assign(4, what);
    return training::training_memory(exec, config, options).total();
  };
  const std::size_t plain = bytes(Recompute::nothing);
  const std::size_t least = bytes(Recompute::all);
  ASSERT_LT(least, plain);
  for (const std::size_t budget : {plain, plain - 1, (plain + least) / 2, least}) {
    options.recompute = training::checkpointing_for_budget(exec, config, options, budget);
    EXPECT_LE(training::training_memory(exec, config, options).total(), budget);
  }
  EXPECT_NE(message_of<InputError>([&] {
              (void)training::checkpointing_for_budget(exec, config, options, least / 2);
            }).find("expected at least " + std::to_string(least)),
            std::string::npos);
}

}  // namespace
}  // namespace katt
