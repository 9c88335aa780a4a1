#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "memory/tracker.hpp"
#include "nn/inference/generate.hpp"
#include "nn/inference/session.hpp"
#include "tests/device.hpp"
#include "tests/message_of.hpp"
#include "tests/nn/llama_tiny.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/training/reference_training.hpp"
#include "training/trainer.hpp"

/// A LLaMA with ternary projections (tests/cases/make_llama_ternary.py).
namespace katt {
namespace {

using training::TokenData;
using training::TrainOptions;

using Exec = Kokkos::DefaultExecutionSpace;
using test::small_data;
using test::Trainer;

std::filesystem::path checkpoint() { return test::case_folders().front() / "llama_ternary"; }

std::vector<float> expected_floats(const char* dataset, const std::vector<std::int64_t>& shape) {
  return test::expected_of(checkpoint()).floats(dataset, shape, "its shape").values;
}

double norm_of(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares);
}

/// |a − b| / |b|
double distance(std::span<const float> a, std::span<const float> b) {
  std::vector<float> difference(a.begin(), a.end());
  for (std::size_t i = 0; i < b.size(); ++i) difference[i] -= b[i];
  return norm_of(difference) / norm_of(b);
}

TEST(TernaryModel, GivesTheLogitsOfTransformers) {
  const auto prompt = test::expected_integers(checkpoint(), "prompt");
  const auto count = std::ssize(prompt);
  for (const Dtype dtype : all_dtypes) {
    const auto model = nn::open_model(Exec(), checkpoint(), dtype, 0);
    const auto expected = expected_floats("logits", {count, model.config().vocab_size});
    nn::Session<Exec> session(model, {.capacity = count});
    const std::vector<float> logits = session.append(prompt, true);
    // An activation beside a half may be rounded to the other side: 1/127 of its token's largest.
    EXPECT_LE(distance(logits, expected), dtype == Dtype::f32 ? 2e-3 : 30 * epsilon_of(dtype))
        << name_of(dtype);
  }
}

TEST(TernaryModel, ContinuesAsTransformers) {
  const auto prompt = test::expected_integers(checkpoint(), "prompt");
  const auto expected = test::expected_integers(checkpoint(), "greedy");
  const auto model = nn::open_model(Exec(), checkpoint(), Dtype::f32, 0);
  for (const bool use_cache : {true, false}) {
    nn::Session<Exec> session(model, {.capacity = std::ssize(prompt) + std::ssize(expected)});
    const nn::GenerateOptions how{.max_new_tokens = std::ssize(expected), .use_cache = use_cache};
    EXPECT_EQ(nn::generate(session, model.config(), prompt, how).tokens, expected);
  }
}

TEST(TernaryModel, HasTheGradientsOfTheStraightThroughEstimator) {
  const nn::LlamaConfig config = nn::read_config(checkpoint());
  const TokenData data = test::reference_data(checkpoint());
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    TrainOptions options = test::reference_options(checkpoint());
    options.dtype = dtype;
    Trainer trainer(Exec(), config, options, checkpoint(), 0);
    (void)trainer.step(data);
    const std::vector<float> gradients = trainer.gradients();
    for (const char* name : {"layers.0.self_attn.k_proj", "layers.1.mlp.down_proj"}) {
      const auto parameter =
          std::ranges::find(trainer.layout().parameters(), "model." + std::string(name) + ".weight",
                            &nn::Parameter::name);
      const auto expected =
          expected_floats(("train/gradients/" + std::string(name)).c_str(), parameter->shape);
      EXPECT_GT(norm_of(expected), 1e-3);
      const auto got = std::span(gradients).subspan(static_cast<std::size_t>(parameter->offset),
                                                    expected.size());
      EXPECT_LE(distance(got, expected), dtype == Dtype::f32 ? 1e-3 : 0.1)
          << name << ' ' << name_of(dtype);
    }
  }
}

TEST(TernaryModel, LosesWhatPyTorchLoses) {
  Trainer trainer(Exec(), nn::read_config(checkpoint()), test::reference_options(checkpoint()),
                  checkpoint(), 0);
  // Weights beside a boundary are rounded to the other side where sums have another order (AVX2).
  test::expect_reference_curve(trainer, checkpoint(), 3e-4);
}

/// A random model that is made ternary, and a text of its vocabulary.
Trainer random_trainer(TrainOptions options, bool ternary = true) {
  options.shape = {.batch = 2, .seq = 19};
  nn::LlamaConfig config = test::small_config();
  if (ternary) config = nn::with_ternary(config);
  return {Exec(), config, std::move(options), "no checkpoint here", 7};
}

TEST(TernaryModel, CheckpointingChangesNoBit) {
  const auto train = [&](Dtype dtype, nn::Recompute what) {
    Trainer trainer =
        random_trainer({.accumulation = 2, .dtype = dtype, .recompute = std::vector(4, what)});
    test::advance(trainer, small_data(), test::device_is_emulated() ? 1 : 2);
    return std::pair(trainer.parameters(), trainer.gradients());
  };
  for (const Dtype dtype : all_dtypes) {
    const auto plain = train(dtype, nn::Recompute::nothing);
    EXPECT_GT(*std::ranges::max_element(plain.second), 0.0F);
    EXPECT_TRUE(train(dtype, nn::Recompute::all) == plain) << name_of(dtype);
  }
}

TEST(TernaryModel, ContinuesWithTheSameBitsAndReopensAsTernary) {
  const TokenData data = small_data();
  const int half = test::device_is_emulated() ? 1 : 2;
  for (const Dtype dtype : test::some_of(std::vector{Dtype::bf16, Dtype::f32}, 1)) {
    const TrainOptions options{.dtype = dtype, .schedule = {.rate = 1e-2, .steps = 4}};
    Trainer whole = random_trainer(options);
    test::advance(whole, data, 2 * half);
    const test::TemporaryFolder folder;
    Trainer first = random_trainer(options), second = random_trainer(options);
    test::train_in_two_runs(first, second, folder.path(), data, half);
    EXPECT_TRUE(second.parameters() == whole.parameters()) << name_of(dtype);
    EXPECT_EQ(second.log().back().loss, whole.log().back().loss);
    Trainer other = random_trainer(options, false);
    EXPECT_TRUE(test::contains(test::message_of<InputError>([&] { other.resume(folder.path()); }),
                               "ternary: holds 1, expected 0"));
    // The opened model computes with the weights of the training: the loss of the next step is the
    // same.
    const auto model = nn::open_model(Exec(), folder.path(), dtype, 0);
    ASSERT_TRUE(model.config().ternary);
    EXPECT_TRUE(model.weights().blocks[0].qkv.packed);
    std::vector<std::int64_t> ids(2 * 19), targets(2 * 19);
    data.fill(2 * half, 19, ids, targets);
    nn::Session<Exec> session(model, {.batch = 2, .capacity = 19});
    const std::vector<float> logits = session.append(ids, true);
    double loss = 0;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      double sum = 0;
      for (std::size_t v = 0; v < 97; ++v) sum += std::exp(logits[t * 97 + v]);
      loss += std::log(sum) - logits[t * 97 + static_cast<std::size_t>(targets[t])];
    }
    const double expected = second.log()[static_cast<std::size_t>(half)].loss;
    EXPECT_NEAR(loss / 38, expected, (dtype == Dtype::f32 ? 1e-3 : 2e-2) * expected);
  }
}

TEST(TernaryModel, ForecastsItsMemory) {
  memory::install();
  const nn::LlamaConfig config = nn::with_ternary(
      test::small_config({{"hidden_size", 192}, {"intermediate_size", 512}, {"head_dim", 32}}));
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const nn::SessionOptions options{.capacity = 40};
    const nn::InferenceMemory forecast = nn::inference_memory(Exec(), config, dtype, options);
    const memory::Scope scope;
    nn::Llama<Exec> model(Exec(), config, dtype);
    nn::randomize_parameters(model.exec(), config, model.layout(), 3, dtype, model.data(),
                             &model.ternary());
    EXPECT_EQ(model.bytes(), forecast.parameters);
    nn::Session<Exec> session(model, options);
    (void)session.append(std::vector<std::int64_t>(40, 3));
    const auto measured = static_cast<double>(scope.peak_bytes());
    const double expected = static_cast<double>(forecast.total()) + test::staging_bytes<Exec>();
    EXPECT_NEAR(expected, measured, 0.1 * measured) << name_of(dtype);
    // 2 bits a weight of the blocks, and a scale a row
    const auto dense = nn::inference_memory(
        Exec(), test::small_config(nlohmann::json::parse(config.json)), dtype, options);
    EXPECT_LT(forecast.parameters, dense.parameters / (dtype == Dtype::f32 ? 6 : 3));
  }
  const TrainOptions options{.shape = {.batch = 2, .seq = 19}, .dtype = Dtype::bf16};
  const auto forecast = training::training_memory(Exec(), config, options).total();
  const memory::Scope scope;
  Trainer trainer(Exec(), config, options, "no checkpoint here", 7);
  (void)trainer.step(small_data());
  const auto measured = static_cast<double>(scope.peak_bytes());
  EXPECT_NEAR(static_cast<double>(forecast) + test::staging_bytes<Exec>(), measured,
              0.1 * measured);
}

TEST(TernaryModel, RefusesWhatItsScalesDoNotAllow) {
  const nn::LlamaConfig config = nn::with_ternary(test::small_config());
  const auto refusal = [](const auto& f) { return test::message_of<InputError>(f); };
  EXPECT_TRUE(test::contains(refusal([&] { nn::check_layout(config, {.tensor = 3}); }),
                             "--tensor 3: the model is ternary"));
  EXPECT_EQ(refusal([&] { nn::check_layout(config, {.pipeline = 2}); }), "");
  EXPECT_TRUE(test::contains(refusal([&] {
                               (void)nn::with_ternary(test::small_config({{"mlp_bias", true}}));
                             }),
                             "--ternary 1: the model has mlp_bias true"));
}

TEST(MasterDtype, MayBeThatOfTheWeights) {
  memory::install();
  const TokenData data = small_data();
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    const TrainOptions options{
        .dtype = dtype, .master_dtype = dtype, .schedule = {.rate = 1e-2, .steps = 6}};
    TrainOptions with_masters = options;
    with_masters.master_dtype = Dtype::f32;
    Trainer whole = random_trainer(options, false);
    const auto elements = static_cast<std::size_t>(whole.layout().size());
    EXPECT_EQ(training::training_memory(Exec(), whole.config(), whole.options()).parameters,
              2 * elements);
    EXPECT_EQ(training::training_memory(Exec(), whole.config(), with_masters).parameters,
              6 * elements);
    test::advance(whole, data, 6);
    EXPECT_LT(whole.log().back().loss, whole.log().front().loss);
    for (const float value : whole.parameters()) ASSERT_EQ(value, round_to(dtype, value));
    const test::TemporaryFolder folder;
    Trainer first = random_trainer(options, false), second = random_trainer(options, false);
    test::train_in_two_runs(first, second, folder.path(), data, 3);
    EXPECT_TRUE(second.parameters() == whole.parameters()) << name_of(dtype);
    Trainer other = random_trainer(with_masters, false);
    EXPECT_TRUE(
        test::contains(test::message_of<InputError>([&] { other.resume(folder.path()); }),
                       "master_dtype: holds " + std::string(name_of(dtype)) + ", expected f32"));
  }
  EXPECT_TRUE(test::contains(test::message_of<InputError>([&] {
                               (void)random_trainer({.master_dtype = Dtype::bf16}, false);
                             }),
                             "masters of bf16 for a model of f32: expected that or f32"));
}

}  // namespace
}  // namespace katt
