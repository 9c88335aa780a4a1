#include <gtest/gtest.h>

#include <vector>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "drivers/training/training_run.hpp"
#include "tests/io/hdf5_builder.hpp"
#include "tests/message_of.hpp"
#include "tests/nn/llama_tiny.hpp"
#include "training/checkpointing.hpp"
#include "training/data.hpp"
#include "training/precision.hpp"
#include "training/schedule.hpp"

/// Tests of the planning of a training run: rates, rows of data, checkpointing.
namespace katt {
namespace {

using nn::Recompute;
using test::message_of;
using training::Schedule;
using training::TokenData;
using training::TrainOptions;

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

TEST(LossScaler, GrowsAndBacksOffByItsFactors) {
  training::LossScaler scaler(
      {.is_dynamic = true, .initial = 100, .growth = 3, .backoff = 0.1, .growth_interval = 2});
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 100);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 300);
  EXPECT_FALSE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), static_cast<double>(static_cast<float>(300 * 0.1)));
  EXPECT_EQ(scaler.good_steps(), 0);
  // A saved scale is an f32 number: what continues from it is the same.
  training::LossScaler restored(
      {.is_dynamic = true, .initial = 1, .growth = 3, .backoff = 0.1, .growth_interval = 2});
  restored.restore(static_cast<double>(static_cast<float>(scaler.scale())), scaler.good_steps());
  for (int step = 0; step < 5; ++step) {
    (void)scaler.update(step != 3);
    (void)restored.update(step != 3);
    EXPECT_EQ(restored.scale(), scaler.scale());
  }
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
  EXPECT_TRUE(test::contains(refuses({1, 8, 2, 3}), "test: token 1 is 8, expected 0 to 7"));
  EXPECT_TRUE(test::contains(refuses({1, -1, 2, 3}), "token 1 is -1"));
  EXPECT_TRUE(test::contains(refuses({1, 2, 3}), "holds 3 tokens"));
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
  EXPECT_EQ(impl::tokens_from_hdf5(folder / "tokens.h5", 8).size(), 3);
  EXPECT_NE(message_of<InputError>([&] { (void)impl::tokens_from_hdf5(folder / "large.h5", 8); }),
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
  EXPECT_EQ(parse("n1:4,gate_up:1"), (std::vector{n1, n1, n1, n1 | gate_up}));
  EXPECT_EQ(parse("n1:4,n2:4,product:4"), parse("cheap"));
  for (const char* bad : {"every:0", "every:x", "4", "-1", "1,,2", "some", "1;2", "n1",
                          "n1:", "n1:0", "n1:5", "n3:1", "n1:1,x:1"}) {
    EXPECT_TRUE(test::contains(message_of<InputError>([&] { (void)parse(bad); }), bad)) << bad;
  }
}

/// Times that nobody measured: `dear` takes a second, everything else a millisecond.
std::vector<training::RecomputeCost> costs_where(const nn::LlamaConfig& config,
                                                 const TrainOptions& options, Recompute dear) {
  std::vector<training::RecomputeCost> costs =
      training::recompute_costs(serial_host(), config, options);
  for (auto& cost : costs) cost.time_s = cost.part == dear ? 1.0 : 1e-3;
  return costs;
}

TEST(Checkpointing, MeasuresEveryTensorOfABlock) {
  const nn::LlamaConfig config = test::small_config();
  for (const Dtype dtype : all_dtypes) {
    const TrainOptions options{.shape = {.batch = 4, .seq = 64}, .dtype = dtype};
    const auto costs = training::recompute_costs(serial_host(), config, options);
    ASSERT_EQ(costs.size(), nn::recomputable.size());
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      EXPECT_EQ(costs[i].part, nn::recomputable[i]);
      EXPECT_GT(costs[i].time_s, 0);
      bytes += costs[i].bytes;
    }
    // n1, h, n2; qkv; attended and lse; gate_up and product, of 256 tokens
    EXPECT_EQ(bytes, 256 * ((3 * 48 + 96 + 48 + 3 * 80) * size_of(dtype) + 6 * 4));
  }
}

TEST(Checkpointing, FitsABudgetWithTheLeastTime) {
  const nn::LlamaConfig config = test::small_config();
  const Host exec = serial_host();
  TrainOptions options{.shape = {.batch = 4, .seq = 64}};
  const auto bytes = [&](const std::vector<Recompute>& recompute) {
    options.recompute = recompute;
    return training::training_memory(exec, config, options).total();
  };
  const std::size_t plain = bytes(std::vector(4, Recompute::nothing));
  const std::size_t least = bytes(std::vector(4, Recompute::all));
  ASSERT_LT(least, plain);
  for (const Recompute dear : nn::recomputable) {
    const auto costs = costs_where(config, options, dear);
    for (const std::size_t budget : {plain, plain - 1, (plain + least) / 2, least}) {
      const auto choice = training::checkpointing_for_budget(exec, config, options, costs, budget);
      EXPECT_LE(bytes(choice.recompute), budget);
      EXPECT_EQ(training::parse_checkpointing("text", choice.text, 4), choice.recompute);
      // Expensive tensors are kept as long as dropping all others suffices, and nothing is
      // recomputed without need.
      const bool is_dear_again = std::ranges::any_of(
          choice.recompute, [=](Recompute what) { return nn::has(what, dear); });
      EXPECT_EQ(is_dear_again, bytes(std::vector(4, nn::without(Recompute::all, dear))) > budget)
          << training::name_of(dear) << " " << choice.text;
      for (std::size_t block = 0; block < 4; ++block) {
        for (const Recompute part : nn::recomputable) {
          if (!nn::has(choice.recompute[block], part) || part == Recompute::n2) continue;
          auto more = choice.recompute;
          more[block] = nn::without(more[block], part);
          const bool is_last_of_all = bytes(more) == bytes(choice.recompute);
          EXPECT_TRUE(is_last_of_all || bytes(more) > budget)
              << training::name_of(part) << " in block " << block << " of " << choice.text;
        }
      }
    }
    EXPECT_TRUE(test::contains(test::message_of<InputError>([&] {
                                 (void)training::checkpointing_for_budget(exec, config, options,
                                                                          costs, least / 2);
                               }),
                               "expected at least " + std::to_string(least)));
  }
}

TEST(Checkpointing, MeasuresOnlyWhereThereIsAChoice) {
  const nn::LlamaConfig config = test::small_config();
  const Host exec = serial_host();
  const TrainOptions options{.shape = {.batch = 4, .seq = 64}};
  const auto plan = [&](const std::string& text) {
    return training::plan_checkpointing(exec, config, options, "--checkpoint-blocks", text);
  };
  EXPECT_EQ(plan("cheap").recompute, std::vector(4, Recompute::cheap));
  const auto roomy = plan("budget:1e12");
  EXPECT_EQ(roomy.text, "none");
  EXPECT_TRUE(roomy.costs.empty());
  TrainOptions plain = options;
  plain.recompute = roomy.recompute;
  const std::size_t needed = training::training_memory(exec, config, plain).total();
  const auto tight = plan("budget:" + std::to_string(needed - 1));
  EXPECT_EQ(tight.costs.size(), nn::recomputable.size());
  EXPECT_NE(tight.text, "none");
  for (const char* bad : {"budget:", "budget:x", "budget:-1", "budget:1000", "budget:nan"}) {
    EXPECT_TRUE(
        test::contains(test::message_of<InputError>([&] { (void)plan(bad); }), "budget holds"))
        << bad;
  }
}

}  // namespace
}  // namespace katt
