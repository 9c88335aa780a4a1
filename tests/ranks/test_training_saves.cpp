#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>

#include "tests/nn/llama_tiny.hpp"
#include "tests/ranks/shared_folder.hpp"
#include "training/saving.hpp"
#include "training/trainer.hpp"

/// Saves of a run by as many ranks as mpirun has started. test_training.cpp tests that any layout
/// continues the save of any other.
namespace katt {
namespace {

using ranks::Layout;
using training::TokenData;
using training::TrainOptions;

using Exec = Kokkos::DefaultExecutionSpace;
using Trainer = training::Trainer<Exec>;

TokenData text() { return {std::vector<std::int32_t>(100, 5), 97, "test"}; }

nn::LlamaConfig config_of(nlohmann::json changes = nlohmann::json::object()) {
  changes["num_key_value_heads"] = 6;
  return test::small_config(changes);
}

/// Highest resident memory of this process since reset_peak(), in bytes; 0 where the system does not
/// say.
std::size_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoul(line.substr(6)) * 1024;
  }
  return 0;
}
bool reset_peak() {
  return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << 5 << std::flush);
}

TEST(Saves, TakeLittleMemory) {
  if (ranks::world().size() > 2) GTEST_SKIP() << "two ranks tell";
#if defined(KATT_ADDRESS_SANITIZER)
  GTEST_SKIP() << "the sanitizer keeps what was freed";
#endif
  const TokenData data = text();
  const nn::LlamaConfig config =
      config_of({{"hidden_size", 384}, {"intermediate_size", 1400}, {"vocab_size", 4096}});
  TrainOptions options{.shape = {.batch = 1, .seq = 16}, .accumulation = 2, .dtype = Dtype::bf16};
  const auto state_bytes = static_cast<std::size_t>(3 * nn::ParameterLayout(config).size()) * 4;
  const std::size_t limit = std::size_t{24} << 20;
  ASSERT_GT(state_bytes, 4 * limit);
  const test::SharedFolder folder;
  const int ranks = ranks::world().size();
  for (const auto& [layout, shards] : {std::pair(Layout{.data = ranks, .zero = true}, ranks),
                                       std::pair(Layout{.tensor = ranks}, 1)}) {
    SCOPED_TRACE(ranks::to_text(layout) + ", shards " + std::to_string(shards));
    options.groups = ranks::Groups(ranks::world(), layout);
    Trainer trainer(Exec(), config, options, "no checkpoint here", 7);
    (void)trainer.step(data);
    if (!reset_peak()) GTEST_SKIP() << "skipped: the system does not say";
    const std::size_t before = peak_resident();
    trainer.save(folder.path(), shards);
    EXPECT_LT(peak_resident() - before, limit);
  }
}

TEST(Saves, ReplaceTheOneBefore) {
  if (ranks::world().size() != 2) GTEST_SKIP() << "two ranks tell";
  const ranks::Communicator ranks = ranks::world();
  TrainOptions options{.shape = {.batch = 2, .seq = 8}};
  options.groups = ranks::Groups(ranks, {.tensor = 2});
  Trainer trainer(Exec(), config_of(), options, "no checkpoint here", 7);
  const test::SharedFolder folder;
  trainer.save(folder.path(), 2);
  EXPECT_EQ(folder.count("-step0-0"), 4);
  ranks.barrier();
  // The same step again takes other names, and leaves nothing of what a kill may have left.
  if (ranks.rank() == 0) {
    std::ofstream(folder.path() / ".model-step0-00002-of-00003.safetensors.katt-abc123.part")
        << "cut off";
    std::ofstream(folder.path() / "model-of-mine.safetensors") << "stays";
  }
  ranks.barrier();
  trainer.save(folder.path(), 2);
  EXPECT_EQ(folder.count("-step0-2-0"), 4);
  EXPECT_EQ(folder.count("step0-0"), 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "model-of-mine.safetensors"));
  ranks.barrier();
  trainer.save(folder.path(), 1);
  EXPECT_EQ(folder.count("step0"), 0);
  EXPECT_EQ(folder.count("index"), 0);
}

/// A folder in the place of a file makes the save of that file fail.
TEST(Saves, ThatFailKeepTheConfigUntilTheStateIsThere) {
  if (ranks::world().size() != 2) GTEST_SKIP() << "two ranks tell";
  const ranks::Communicator ranks = ranks::world();
  TrainOptions options{.shape = {.batch = 2, .seq = 8}};
  options.groups = ranks::Groups(ranks, {.tensor = 2});
  Trainer trainer(Exec(), config_of(), options, "no checkpoint here", 7);
  for (const auto& [obstacle, has_state] :
       {std::pair("training_state-step0-00002-of-00002.safetensors", false),  // of rank 1
        std::pair("training_state.safetensors.index.json", false),
        std::pair("model.safetensors.index.json", true)}) {
    SCOPED_TRACE(obstacle);
    const test::SharedFolder folder;
    const std::filesystem::path config = folder.path() / "config.json";
    if (ranks.rank() == 0) {
      std::filesystem::create_directories(folder.path() / obstacle);
      std::ofstream(config) << "of another model";
    }
    ranks.barrier();
    try {
      trainer.save(folder.path(), 2);
      ADD_FAILURE() << "expected a failure";
    } catch (const training::SaveError& error) {
      EXPECT_EQ(error.has_state, has_state) << error.what();
    }
    EXPECT_EQ(std::filesystem::exists(config), !has_state);
    if (has_state) trainer.resume(folder.path());
  }
}

TEST(Saves, TakeAShardForEachTwoGibibytes) {
  EXPECT_EQ(training::suggested_shards(config_of(), 8), 1);
  // 32 blocks of the 7 billion parameters: 25 GiB in f32
  const nn::LlamaConfig large = test::small_config({{"vocab_size", 32000},
                                                    {"hidden_size", 4096},
                                                    {"intermediate_size", 11008},
                                                    {"num_hidden_layers", 32},
                                                    {"num_attention_heads", 32},
                                                    {"num_key_value_heads", 32},
                                                    {"head_dim", 128}});
  EXPECT_EQ(training::suggested_shards(large, 64), 13);
  EXPECT_EQ(training::suggested_shards(large, 4), 4);
  EXPECT_EQ(training::suggested_shards(large, 1), 1);
}

}  // namespace
}  // namespace katt
