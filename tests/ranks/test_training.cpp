#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "memory/tracker.hpp"
#include "nn/inference/session.hpp"
#include "tests/device.hpp"
#include "tests/message_of.hpp"
#include "tests/nn/llama_tiny.hpp"
#include "tests/ranks/shared_folder.hpp"
#include "tests/training/reference_training.hpp"
#include "training/trainer.hpp"

/// Training in every layout of as many ranks as mpirun has started, and inference.
namespace katt {
namespace {

using ranks::Layout;
using test::Trainer;
using training::StepLog;
using training::TokenData;
using training::TrainOptions;

using Exec = Kokkos::DefaultExecutionSpace;

TokenData small_data() { return test::small_data(2000); }

/// A layout whose ranks share rows of the stream, attend by heads and have two parts of the blocks a
/// stage, each where that can be.
Layout with_all_variants(Layout layout, const nn::LlamaConfig& config, TrainOptions options) {
  const auto turn_on = [&](bool applies, auto& member, auto value) {
    if (!applies) return;
    const auto before = std::exchange(member, value);
    options.groups = ranks::Groups(ranks::Place(layout, 0));
    try {
      training::check_ranks(config, options);
    } catch (const InputError&) {  // told in the tests of refusals
      member = before;
    }
  };
  turn_on(layout.tensor > 1, layout.sequence_parallel, true);
  turn_on(layout.context > 1, layout.context_variant, ranks::ContextVariant::ulysses);
  turn_on(layout.pipeline > 1, layout.virtual_stages, 2);
  return layout;
}

/// All layouts of the ranks that can share the model and its batch, and their variants. Eight
/// ranks take layouts of three kinds only: fewer kinds are tried on fewer ranks. On three and more
/// ranks half of the layouts come as their variants alone, unless all cases are asked for: two
/// ranks try both.
std::vector<Layout> layouts(const nn::LlamaConfig& config, const TrainOptions& options) {
  const int ranks = ranks::world().size();
  std::vector<Layout> found;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int pipeline = 1; tensor * pipeline <= ranks; ++pipeline) {
      for (int context = 1; tensor * pipeline * context <= ranks; ++context) {
        if (ranks % (tensor * pipeline * context) != 0) continue;
        for (const bool zero : {false, true}) {
          const Layout layout = ranks::layout_of(ranks, tensor, pipeline, context, zero);
          if (zero && layout.replicas() == 1) continue;
          if (ranks == 8 && std::max({tensor, pipeline, context, layout.data}) > 2) continue;
          TrainOptions with = options;
          with.groups = ranks::Groups(ranks::Place(layout, 0));
          try {
            training::check_ranks(config, with);
            const Layout variant = with_all_variants(layout, config, options);
            const bool varies = ranks::to_text(variant) != ranks::to_text(layout);
            const bool both = ranks == 2 || test::all_cases(), plain = found.size() / 2 % 2 == 0;
            if (both || plain || !varies) found.push_back(layout);
            if (varies && (both || !plain)) found.push_back(variant);
          } catch (const InputError&) {  // told in the tests of refusals
          }
        }
      }
    }
  }
  return found;
}

/// The layouts that the i-th of so many cases of a test is run in: all where two ranks train or all
/// cases are asked for, else one in so many, so that each layout has a case.
std::vector<Layout> layouts_of_case(std::size_t i, std::size_t cases, const nn::LlamaConfig& config,
                                    const TrainOptions& options) {
  std::vector<Layout> all = layouts(config, options);
  if (ranks::world().size() == 2 || test::all_cases()) return all;
  std::vector<Layout> some;
  for (std::size_t k = i; k < all.size(); k += cases) some.push_back(all[k]);
  return some;
}

/// As PyTorch was trained, with gradients in several buckets.
TrainOptions reference_options(const std::filesystem::path& checkpoint) {
  TrainOptions options = test::reference_options(checkpoint);
  options.bucket = 16384;
  return options;
}

TEST(TrainingOverRanks, LosesWhatPyTorchLoses) {
  const auto checkpoints = test::checkpoints();
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    const auto& checkpoint = checkpoints[i];
    TrainOptions options = reference_options(checkpoint);
    const nn::LlamaConfig config = nn::read_config(checkpoint);
    for (const Layout& layout : layouts_of_case(i, checkpoints.size(), config, options)) {
      SCOPED_TRACE(checkpoint.string() + ": " + ranks::to_text(layout));
      options.groups = ranks::Groups(ranks::world(), layout);
      Trainer trainer(Exec(), config, options, checkpoint, 0);
      test::expect_reference_curve(trainer, checkpoint, 2e-4);
    }
  }
}

/// A model whose heads and MLP two or three ranks can share.
nn::LlamaConfig model(nlohmann::json changes = nlohmann::json::object()) {
  changes["intermediate_size"] = 84;
  changes["num_key_value_heads"] = 6;
  return test::small_config(changes);
}

/// A step has 24 rows of 48 tokens: eight ranks can share both.
TrainOptions small_options(Dtype dtype = Dtype::f32) {
  return {.shape = {.batch = 6, .seq = 48}, .accumulation = 4, .dtype = dtype, .bucket = 5000};
}

/// Largest difference of a rank's part of the parameters from those of the whole model, relative to
/// the largest of them.
double difference(const nn::ParameterLayout& layout, const std::vector<float>& part,
                  const std::vector<float>& whole) {
  double most = 0, scale = 0;
  for (const nn::Parameter& parameter : layout.parameters()) {
    for (std::int64_t i = 0; i < parameter.size(); ++i) {
      const double a = part[static_cast<std::size_t>(parameter.offset + i)];
      const double b =
          whole[static_cast<std::size_t>(parameter.whole_offset + parameter.whole_index(i))];
      most = std::max(most, std::abs(a - b));
      scale = std::max(scale, std::abs(b));
    }
  }
  return most / scale;
}

TEST(TrainingOverRanks, IsThatOfOneRank) {
  const TokenData data = small_data();
  struct Case {
    Dtype dtype;
    bool tied, recompute;
  };
  const std::vector<Case> cases{
      {Dtype::f32, true, false}, {Dtype::f32, false, true}, {Dtype::bf16, true, true}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& what = cases[i];
    const nn::LlamaConfig config = model({{"tie_word_embeddings", what.tied},
                                          {"attention_bias", what.tied},
                                          {"mlp_bias", what.tied}});
    TrainOptions options = small_options(what.dtype);
    options.recompute.assign(4, what.recompute ? nn::Recompute::all : nn::Recompute::nothing);
    Trainer alone(Exec(), config, options, "no checkpoint here", 7);
    const std::vector<StepLog> expected{alone.step(data), alone.step(data)};
    const auto parameters = alone.parameters();
    const double limit = what.dtype == Dtype::f32 ? 1e-4 : 2e-2;
    for (const Layout& layout : layouts_of_case(i, cases.size(), config, options)) {
      SCOPED_TRACE(ranks::to_text(layout) + ", " + std::string(name_of(what.dtype)) +
                   (what.tied ? ", tied" : "") + (what.recompute ? ", recomputed" : ""));
      options.groups = ranks::Groups(ranks::world(), layout);
      Trainer trainer(Exec(), config, options, "no checkpoint here", 7);
      for (const StepLog& one : expected) {
        const StepLog log = trainer.step(data);
        ASSERT_NEAR(log.loss, one.loss, limit * one.loss);
        ASSERT_NEAR(log.grad_norm, one.grad_norm, 2 * limit * one.grad_norm);
      }
      EXPECT_LT(difference(trainer.layout(), trainer.parameters(), parameters),
                what.dtype == Dtype::f32 ? 2e-3 : 2e-2);
    }
  }
}

TEST(TrainingOverRanks, SharesRowsThatAreNotEven) {
  if (ranks::world().size() > 3) GTEST_SKIP() << "two ranks and three tell";
  const TokenData data = small_data();
  const nn::LlamaConfig config = model();
  TrainOptions options{.shape = {.batch = 1, .seq = 5}, .accumulation = 2, .bucket = 5000};
  Trainer alone(Exec(), config, options, "no checkpoint here", 7);
  (void)alone.step(data);
  const StepLog expected = alone.step(data);
  options.groups = ranks::Groups(
      ranks::world(), Layout{.tensor = ranks::world().size(), .sequence_parallel = true});
  Trainer trainer(Exec(), config, options, "no checkpoint here", 7);
  (void)trainer.step(data);
  const StepLog log = trainer.step(data);
  EXPECT_NEAR(log.loss, expected.loss, 1e-4 * expected.loss);
  EXPECT_NEAR(log.grad_norm, expected.grad_norm, 2e-4 * expected.grad_norm);
  EXPECT_LT(difference(trainer.layout(), trainer.parameters(), alone.parameters()), 2e-3);
}

/// Activations fall with the ranks: what the norms keep, x, n1, h and n2 of every block, too.
TEST(TrainingOverRanks, NeedsLessMemoryWhereRowsAreShared) {
  const nn::LlamaConfig config = model();
  TrainOptions options = small_options();
  const auto activations = [&](Layout layout) {
    options.groups = ranks::Groups(ranks::Place(layout, 0));
    return static_cast<double>(training::training_memory(Exec(), config, options).activations);
  };
  const double a_row = 6 * 48 * 4.0;  // bytes of one value a row
  const double rows = a_row * 48;     // bytes of all rows of a tensor of the stream
  const double all = activations({.tensor = 2});
  const double saved = all - activations({.tensor = 2, .sequence_parallel = true});
  // Each of the 4 blocks saves half of four tensors; beside the blocks, half of delta, x and g is
  // saved, and one more tensor has the rows of all. Each of the 9 norms saves half of its values
  // for rows. A pool reserves a whole number of 64ths.
  EXPECT_NEAR(saved, (4 * 4 / 2.0 + 3 / 2.0 - 1) * rows + 9 / 2.0 * a_row, all / 64);
}

/// Every stage's passes in their order, each of them when what it needs is there: the time of all of
/// them, a part's forward pass taking one and its backward pass two, over the time of a stage's own;
/// −1 where they wait for each other.
double time_of_schedule(const Layout& layout, std::int64_t microbatches) {
  const int stages = layout.pipeline, parts = stages * layout.virtual_stages;
  std::vector<std::vector<training::PipelinePass>> passes;
  for (int s = 0; s < stages; ++s) {
    passes.push_back(training::pipeline_schedule(layout, s, microbatches));
  }
  std::map<std::tuple<bool, int, std::int64_t>, double> done;
  std::vector<double> time(passes.size(), 0.0);
  std::vector<std::size_t> next(passes.size(), 0);
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (int s = 0; s < stages; ++s) {
      const auto at = static_cast<std::size_t>(s);
      for (; next[at] < passes[at].size(); ++next[at], goes_on = true) {
        const training::PipelinePass& pass = passes[at][next[at]];
        const int part = pass.part * stages + s;
        double ready = 0;
        if (pass.backward || part > 0) {
          const bool turns = pass.backward && part == parts - 1;
          const auto needed =
              done.find({pass.backward && !turns, turns ? part : part + (pass.backward ? 1 : -1),
                         pass.micro});
          if (needed == done.end()) break;
          ready = needed->second;
        }
        time[at] = std::max(time[at], ready) + (pass.backward ? 2 : 1);
        done[{pass.backward, part, pass.micro}] = time[at];
      }
    }
  }
  const auto all = static_cast<std::size_t>(2 * microbatches * parts);
  if (done.size() != all) return -1;
  return *std::ranges::max_element(time) /
         static_cast<double>(3 * microbatches * layout.virtual_stages);
}

TEST(PipelineSchedule, HasTheBubbleOfItsFormula) {
  if (ranks::world().rank() > 0) return;
  for (const int stages : {2, 3, 4, 8}) {
    for (const int parts : {1, 2, 3, 4}) {
      for (const std::int64_t rounds : {1, 2, 5}) {
        const Layout layout{.pipeline = stages, .virtual_stages = parts};
        const std::int64_t micro = rounds * stages;
        SCOPED_TRACE(ranks::to_text(layout) + ", microbatches " + std::to_string(micro));
        EXPECT_NEAR(time_of_schedule(layout, micro) - 1,
                    (stages - 1) / static_cast<double>(parts * micro), 1e-9);
      }
    }
  }
  // 1F1B takes any number of microbatches, and keeps as many as stages follow.
  const auto passes = training::pipeline_schedule({.pipeline = 4}, 1, 7);
  EXPECT_EQ(passes.size(), 14U);
  EXPECT_EQ(training::kept_microbatches(passes, 1), std::vector<std::int64_t>{3});
}

TEST(TrainingOverRanks, TellsHowLongStagesIdle) {
  if (ranks::world().size() != 2) GTEST_SKIP() << "two ranks tell";
  const TokenData data = small_data();
  TrainOptions options = small_options();
  for (const Layout& layout : {Layout{.data = 2}, Layout{.pipeline = 2, .virtual_stages = 2}}) {
    options.groups = ranks::Groups(ranks::world(), layout);
    Trainer trainer(Exec(), model(), options, "no checkpoint here", 7);
    const float idle = trainer.step(data).pipeline_idle;
    if (layout.pipeline == 1) {
      EXPECT_EQ(idle, 0);
    } else {
      EXPECT_GT(idle, 0);
      EXPECT_LT(idle, 1);
    }
  }
}

TEST(TrainingOverRanks, ComputesTheSameBitsAgain) {
  if (ranks::world().size() > 4) GTEST_SKIP() << "four ranks tell";
  const TokenData data = small_data();
  const nn::LlamaConfig config = model();
  TrainOptions options = small_options();
  for (const Layout& layout : layouts(config, options)) {
    SCOPED_TRACE(ranks::to_text(layout));
    options.groups = ranks::Groups(ranks::world(), layout);
    const auto train = [&] {
      Trainer trainer(Exec(), config, options, "no checkpoint here", 7);
      (void)trainer.step(data);
      (void)trainer.step(data);
      return trainer.parameters();
    };
    const auto first = train();
    EXPECT_TRUE(train() == first);
  }
}

TEST(TrainingOverRanks, ContinuesInAnotherLayout) {
  if (ranks::world().size() > 4) GTEST_SKIP() << "four ranks tell";
  const TokenData data = small_data();
  const nn::LlamaConfig config = model({{"tie_word_embeddings", true}});
  TrainOptions options = small_options();
  Trainer unbroken(Exec(), config, options, "no checkpoint here", 7);
  std::vector<StepLog> expected;
  for (int s = 0; s < 4; ++s) expected.push_back(unbroken.step(data));
  const ranks::Communicator ranks = ranks::world();
  const test::SharedFolder folder;
  // Each layout continues what the one before has saved, in one file, a few or one a rank; the last
  // comes first.
  const auto all = layouts(config, options);
  const auto train_two = [&](const Layout& layout, int shards) {
    options.groups = ranks::Groups(ranks, layout);
    Trainer trainer(Exec(), config, options, "no checkpoint here", 7);
    (void)trainer.step(data);
    (void)trainer.step(data);
    trainer.save(folder.path(), shards);
    // The saved folder is a model that can be opened; each rank reads its part of it.
    const auto model = nn::open_model(Exec(), folder.path(), Dtype::f32, 0, options.groups);
    std::vector<float> opened(static_cast<std::size_t>(model.layout().size()));
    nn::copy_to_host(Exec(), model.data(), std::as_writable_bytes(std::span(opened)));
    EXPECT_TRUE(opened == trainer.parameters());
    ranks.barrier();
    if (ranks.rank() == 0) {
      EXPECT_EQ(folder.count("-of-"), shards == 1 ? 0 : 2 * shards);
    }
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Layout& next = all[(i + 1) % all.size()];
    SCOPED_TRACE(ranks::to_text(all[i]) + ", then " + ranks::to_text(next));
    train_two(all[i], 1 + static_cast<int>(i) % ranks.size());
    options.groups = ranks::Groups(ranks, next);
    Trainer trainer(Exec(), config, options, "no checkpoint here", 1);
    trainer.resume(folder.path());
    for (int s = 2; s < 4; ++s) {
      const StepLog log = trainer.step(data);
      const StepLog& one = expected[static_cast<std::size_t>(s)];
      EXPECT_NEAR(log.loss, one.loss, 1e-4 * one.loss) << "step " << s;
      EXPECT_NEAR(log.grad_norm, one.grad_norm, 1e-3 * one.grad_norm) << "step " << s;
    }
    ranks.barrier();
  }
}

TEST(TrainingOverRanks, TakesTheMemoryThatIsForecast) {
  if (ranks::world().size() > 4) GTEST_SKIP() << "four ranks tell";
  memory::install();
  const TokenData data = small_data();
  const nn::LlamaConfig config = model({{"hidden_size", 96}});
  const Dtype dtypes[] = {Dtype::f32, Dtype::bf16};
  for (std::size_t i = 0; i < 2; ++i) {
    const Dtype dtype = dtypes[i];
    TrainOptions options = small_options(dtype);
    for (const Layout& layout : layouts_of_case(i, 2, config, options)) {
      SCOPED_TRACE(ranks::to_text(layout) + ", " + std::string(name_of(dtype)));
      options.groups = ranks::Groups(ranks::Place(layout, ranks::world().rank()));
      const auto forecast = training::training_memory(Exec(), config, options);
      options.groups = ranks::Groups(ranks::world(), layout);
      const memory::Scope scope;
      Trainer trainer(Exec(), config, options, "no checkpoint here", 7);
      (void)trainer.step(data);
      const auto measured = static_cast<double>(scope.peak_bytes());
      EXPECT_NEAR(static_cast<double>(forecast.total()), measured, 0.02 * measured);
    }
  }
}

nn::Llama<Exec> random_llama(const nn::LlamaConfig& config, const ranks::Groups& groups) {
  nn::Llama<Exec> llama(Exec(), config, Dtype::f32, groups);
  nn::randomize_parameters(llama.exec(), config, llama.layout(), 3, Dtype::f32, llama.data());
  return llama;
}

TEST(InferenceOverRanks, TakesTheMemoryThatIsForecast) {
  if (ranks::world().size() > 3) GTEST_SKIP() << "three ranks tell";
  memory::install();
  const nn::LlamaConfig config = model({{"hidden_size", 96}});
  const int tensor = ranks::world().size();
  for (const std::int64_t page_size : {0, 64}) {
    nn::SessionOptions options{.batch = 4, .capacity = 512, .page_size = page_size};
    options.groups = ranks::Groups(ranks::world(), Layout{.tensor = tensor});
    const auto forecast = nn::inference_memory(Exec(), config, Dtype::f32, options);
    EXPECT_EQ(forecast.communication > 0, tensor > 1);
    const memory::Scope scope;
    const auto llama = random_llama(config, options.groups);
    nn::Session<Exec> session(llama, options);
    if (page_size == 0) {
      (void)session.append(std::vector<std::int64_t>(4 * 512, 3));
    } else {
      const std::vector<std::int64_t> one{session.open()};
      (void)session.append_to(one, std::vector<std::int64_t>(512, 3));
    }
    const auto measured = static_cast<double>(scope.peak_bytes());
    EXPECT_NEAR(static_cast<double>(forecast.total()), measured, 0.03 * measured)
        << "pages of " << page_size;
  }
}

/// The second piece has few tokens (nn::few_tokens): its tensors lie where the rows of the first one
/// are, which the next stage reads late.
TEST(InferenceOverRanks, KeepsTheRowsOfAPieceUntilTheyAreRead) {
  if (ranks::world().size() != 2) GTEST_SKIP() << "two ranks tell";
  std::vector<std::int64_t> prompt;
  for (std::int64_t i = 0; i < 130; ++i) prompt.push_back((i * i * 7 + 3 * i) % 97);
  const auto logits_of = [&](const ranks::Groups& groups) {
    const auto llama = random_llama(model(), groups);
    nn::Session<Exec> session(llama, {.capacity = 130, .chunk = 70});
    if (groups.place.stage > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return session.append(prompt, true);
  };
  const auto logits = logits_of(ranks::Groups(ranks::world(), Layout{.pipeline = 2}));
  const auto alone = logits_of({});
  ASSERT_EQ(logits.size(), alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(logits[i], alone[i], 1e-4) << i;
}

TEST(TrainingOverRanks, SharesRows) {
  const auto share = [](std::int64_t batch, std::int64_t accumulation, int data, int rank,
                        std::int64_t micro = 0) {
    ranks::Place place(ranks::Layout{.data = data}, rank);
    return training::share_rows(batch, accumulation, place, micro);
  };
  EXPECT_EQ(share(4, 2, 1, 0).microbatches, 2);
  EXPECT_EQ(share(4, 2, 2, 1).first, 4);
  EXPECT_EQ(share(4, 2, 2, 1).rows, 4);
  EXPECT_EQ(share(3, 2, 2, 1).rows, 3);
  EXPECT_EQ(share(4, 3, 2, 1).rows, 3) << "the most that divide 6";
  EXPECT_EQ(share(4, 2, 2, 0, 4).rows, 1);
  EXPECT_EQ(test::message_of([&] { return share(3, 1, 2, 0); }),
            "--batch 3 --accumulation 1: a step has 3 rows, expected a multiple of the 2 data "
            "parallel ranks");
  EXPECT_EQ(test::message_of([&] { return share(4, 1, 1, 0, 3); }),
            "--micro-batches 3: a rank has 4 rows of a step, expected a divisor of them");
}

TEST(TrainingOverRanks, RefusesWhatCannotBeShared) {
  const nn::LlamaConfig config = test::small_config();
  const auto refusal = [&](const Layout& layout) -> std::string {
    TrainOptions options = small_options();
    options.groups = ranks::Groups(ranks::Place(layout, 0));
    return test::message_of([&] { training::check_ranks(config, options); });
  };
  EXPECT_EQ(refusal({.tensor = 2}),
            "--tensor 2: the model has 6 heads, 3 K/V heads and 80 columns of the MLP, expected a "
            "divisor of all: 1");
  EXPECT_EQ(refusal({.pipeline = 5}),
            "--pipeline 5: the model has 4 blocks, expected at most as many stages");
  EXPECT_EQ(refusal({.context = 5}),
            "--context 5: --seq is 48, expected a multiple of 10, two chunks a rank");
  EXPECT_EQ(refusal({.context = 2, .context_variant = ranks::ContextVariant::ulysses}),
            "--context 2 --context-variant ulysses: a rank has 6 heads and 3 K/V heads, expected a "
            "divisor of both: 1, 3");
  EXPECT_EQ(refusal({.virtual_stages = 2}),
            "--virtual-stages 2: --pipeline is 1, expected 2 or more stages, which take turns");
  EXPECT_EQ(refusal({.pipeline = 2, .virtual_stages = 3}),
            "--pipeline 2 --virtual-stages 3: the model has 4 blocks, expected at most as many "
            "parts");
  EXPECT_EQ(refusal({.pipeline = 2, .data = 8, .virtual_stages = 2}),
            "--virtual-stages 2: the microbatches of a rank's step are 1, expected a multiple of "
            "--pipeline 2");
  EXPECT_EQ(test::message_of([&] { (void)ranks::layout_of(4, 3, 1, 1, false); }),
            "--tensor 3 --pipeline 1 --context 1: their product is 3, expected a divisor of "
            "the 4 ranks");
}

}  // namespace
}  // namespace katt
