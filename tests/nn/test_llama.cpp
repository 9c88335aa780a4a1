#include <gtest/gtest.h>

#include <cmath>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "memory/tracker.hpp"
#include "nn/inference/sampling.hpp"
#include "nn/inference/session.hpp"
#include "nn/model/model.hpp"
#include "tests/device.hpp"
#include "tests/message_of.hpp"
#include "tests/nn/llama_tiny.hpp"
#include "tests/temporary_folder.hpp"

namespace katt {
namespace {

using test::random_model;

template <class Exec>
class Llama : public ::testing::Test {};

#if defined(KATT_HAS_CUDA)
using Spaces = ::testing::Types<Kokkos::Cuda, Host>;
#else
using Spaces = ::testing::Types<Host>;
#endif
TYPED_TEST_SUITE(Llama, Spaces);

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

std::vector<std::int64_t> some_tokens(std::int64_t count, std::int64_t vocab) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int64_t>(i * i * 7 + 3 * i) % vocab;
  }
  return tokens;
}

TYPED_TEST(Llama, GivesTheLogitsOfTransformers) {
  for (const auto& checkpoint : test::checkpoints()) {
    SCOPED_TRACE(checkpoint);
    const auto model = nn::open_model(TypeParam(), checkpoint, Dtype::f32, 0);
    const auto prompt = test::expected_integers(checkpoint, "prompt");
    const auto count = static_cast<std::int64_t>(prompt.size());
    const std::vector<std::int64_t> shape{count, model.config().vocab_size};
    const std::vector<float> expected =
        test::expected_of(checkpoint).floats("logits", shape, "(S, V)").values;
    nn::Session<TypeParam> session(model, {.capacity = count});
    EXPECT_LE(largest_difference(session.append(prompt, true), expected), 2e-5);
  }
}

TYPED_TEST(Llama, ContinuesAsTransformersCachedAndNot) {
  for (const auto& checkpoint : test::checkpoints()) {
    SCOPED_TRACE(checkpoint);
    const auto model = nn::open_model(TypeParam(), checkpoint, Dtype::f32, 0);
    const auto prompt = test::expected_integers(checkpoint, "prompt");
    const auto expected = test::expected_integers(checkpoint, "greedy");
    const auto capacity = static_cast<std::int64_t>(prompt.size() + expected.size());
    nn::Sampler greedy({});
    for (const bool is_cached : {true, false}) {
      nn::Session<TypeParam> session(model, {.capacity = capacity});
      std::vector<std::int64_t> text = prompt;
      std::vector<std::int64_t> added;
      std::vector<float> logits = session.append(prompt);
      while (added.size() < expected.size()) {
        added.push_back(greedy.pick(logits));
        text.push_back(added.back());
        if (added.size() == expected.size()) break;
        if (!is_cached) session.clear();
        logits = is_cached ? session.append(std::span(added).last(1)) : session.append(text);
      }
      EXPECT_EQ(added, expected) << "cached " << is_cached;
    }
  }
}

TYPED_TEST(Llama, PrefillInChunksAndInBatches) {
  for (const Dtype dtype : all_dtypes) {
    const auto model = random_model<TypeParam>(dtype);
    const auto tokens = some_tokens(23, 97);
    nn::Session<TypeParam> whole(model, {.capacity = 23});
    const std::vector<float> logits = whole.append(tokens, true);
    const double limit = 40 * epsilon_of(dtype);
    for (const std::int64_t chunk : {1, 5, 8}) {
      nn::Session<TypeParam> session(model, {.capacity = 23, .chunk = chunk});
      EXPECT_LE(largest_difference(session.append(tokens, true), logits), limit)
          << name_of(dtype) << " chunk " << chunk;
      EXPECT_EQ(session.length(), 23);
    }
    // three sequences at once, the second another one
    std::vector<std::int64_t> batch(tokens);
    batch.insert(batch.end(), tokens.rbegin(), tokens.rend());
    batch.insert(batch.end(), tokens.begin(), tokens.end());
    nn::Session<TypeParam> session(model, {.batch = 3, .capacity = 23, .chunk = 7});
    const std::vector<float> three = session.append(batch, true);
    const std::vector<float> last(three.end() - static_cast<std::ptrdiff_t>(logits.size()),
                                  three.end());
    EXPECT_LE(largest_difference(last, logits), limit) << name_of(dtype);
    nn::Session<TypeParam> final_only(model, {.batch = 3, .capacity = 23, .chunk = 7});
    const std::vector<float> final_logits = final_only.append(batch);
    EXPECT_LE(largest_difference({final_logits.end() - 97, final_logits.end()},
                                 {three.end() - 97, three.end()}),
              limit)
        << name_of(dtype);
  }
}

TYPED_TEST(Llama, HasBiasesTiedEmbeddingsAndBigHeads) {
  // Biases of zero change nothing; a tied head is the embedding.
  const auto plain =
      random_model<TypeParam>(Dtype::f32, test::small_config({{"tie_word_embeddings", true}}));
  const auto tokens = some_tokens(11, 97);
  nn::Session<TypeParam> session(plain, {.capacity = 11});
  EXPECT_EQ(session.append(tokens, true).size(), 11U * 97);
  EXPECT_EQ(plain.weights().head.data, plain.weights().embedding.data);
  const auto biased = random_model<TypeParam>(
      Dtype::f32,
      test::small_config({{"attention_bias", true}, {"mlp_bias", true}, {"head_dim", 16}}));
  nn::Session<TypeParam> with_biases(biased, {.capacity = 11});
  for (const float logit : with_biases.append(tokens)) EXPECT_TRUE(std::isfinite(logit));
}

TYPED_TEST(Llama, RefusesTokensThatItCannotTake) {
  const auto model = random_model<TypeParam>(Dtype::f32);
  nn::Session<TypeParam> session(model, {.capacity = 4});
  const auto refuses = [&](const std::vector<std::int64_t>& tokens) {
    return test::message_of<InputError>([&] { (void)session.append(tokens); });
  };
  EXPECT_TRUE(test::contains(refuses({97}), "token 97: expected 0 to 96"));
  EXPECT_TRUE(test::contains(refuses({-1}), "token -1"));
  EXPECT_TRUE(test::contains(refuses({}), "tokens: 0"));
  EXPECT_TRUE(test::contains(refuses({1, 2, 3, 4, 5}), "expected 1 to 4"));
}

TYPED_TEST(Llama, ForecastsItsMemory) {
  memory::install();
  const std::int64_t many = test::device_is_emulated() ? 60 : 500;
  for (const Dtype dtype : all_dtypes) {
    for (const nlohmann::json& changes :
         {nlohmann::json{{"vocab_size", 999}}, nlohmann::json{{"head_dim", 64}}}) {
      for (const nn::SessionOptions& options : {nn::SessionOptions{.batch = 1, .capacity = many},
                                                {.batch = 3, .capacity = 40},
                                                {.batch = 2, .capacity = many / 2, .chunk = 16}}) {
        const nn::LlamaConfig config = test::small_config(changes);
        const memory::Scope scope;
        const auto model = random_model<TypeParam>(dtype, config);
        const nn::Session<TypeParam> dry(TypeParam(), config, dtype, model.weights(), options,
                                         true);
        nn::Session<TypeParam> session(model, options);
        (void)session.append(some_tokens(options.batch * options.capacity, config.vocab_size));
        const auto forecast = static_cast<double>(model.bytes() + dry.cache_bytes() +
                                                  dry.activation_bytes() + dry.workspace_bytes()) +
                              test::staging_bytes<TypeParam>();
        const auto measured = static_cast<double>(scope.peak_bytes());
        EXPECT_NEAR(forecast, measured, 0.1 * measured)
            << name_of(dtype) << " batch " << options.batch << " chunk " << options.chunk;
      }
    }
  }
}

TYPED_TEST(Llama, AHitLimitIsAnErrorAndTheProgramGoesOn) {
  const auto model = random_model<TypeParam>(Dtype::f32);
  const nn::Session<TypeParam> dry(TypeParam(), model.config(), Dtype::f32, model.weights(),
                                   {.capacity = 900, .chunk = 16}, true);
  // The workspace of a device's library is larger than all activations here.
  const std::size_t limit = dry.activation_bytes() * 5 / 4 + dry.workspace_bytes();
  const nn::Pool<TypeParam> pool("katt::test::pool", limit);
  const auto last = [&](std::int64_t chunk) {
    nn::Session<TypeParam> session(model, {.capacity = 900, .chunk = chunk}, pool);
    return session.append(some_tokens(900, 97));
  };
  const std::vector<float> logits = last(16);
  EXPECT_TRUE(test::contains(test::message_of<memory::LimitError>([&] { (void)last(900); }),
                             "live, the limit is " + std::to_string(limit)));
  EXPECT_EQ(last(16), logits);
}

TYPED_TEST(Llama, BeginsAgainInTheSameCache) {
  const auto model = random_model<TypeParam>(Dtype::bf16);
  nn::Session<TypeParam> session(model, {.batch = 2, .capacity = 9});
  const auto tokens = some_tokens(18, 97);
  const std::vector<float> logits = session.append(tokens);
  session.clear();
  EXPECT_EQ(session.length(), 0);
  (void)session.append(some_tokens(4, 50));
  session.clear();
  EXPECT_EQ(session.append(tokens), logits);
}

TEST(LlamaFiles, RefusesACheckpointOfAnotherModel) {
  const auto checkpoint = test::checkpoints().front();
  const test::TemporaryFolder folder;
  std::filesystem::copy(checkpoint / "model.safetensors", folder / "model.safetensors");
  const nlohmann::json config = nlohmann::json::parse(test::read_bytes(checkpoint / "config.json"));
  const auto refusal = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json changed = config;
    changed[key] = value;
    test::write_bytes(folder / "config.json", changed.dump());
    return test::message_of<InputError>(
        [&] { (void)nn::open_model(serial_host(), folder.path(), Dtype::f32, 0); });
  };
  EXPECT_TRUE(test::contains(refusal("intermediate_size", 4194304),
                             "holds shape (104, 48), expected (4194304"));
  EXPECT_TRUE(test::contains(refusal("num_hidden_layers", 3),
                             "model.layers.2.input_layernorm.weight: is missing"));
  EXPECT_TRUE(test::contains(refusal("num_hidden_layers", 1), "is not part of the model"));
  EXPECT_TRUE(test::contains(refusal("attention_bias", true), "q_proj.bias: is missing"));
  EXPECT_TRUE(test::contains(refusal("tie_word_embeddings", false), "lm_head.weight: is missing"));
}

TEST(LlamaFiles, PassesOverAHeadThatIsACopyOfTiedEmbeddings) {  // as transformers does
  const nn::LlamaConfig untied = test::small_config();
  const nn::ParameterLayout layout(untied);
  const test::TemporaryFolder folder;
  nlohmann::json config = nlohmann::json::parse(untied.json);
  config["tie_word_embeddings"] = true;
  test::write_bytes(folder / "config.json", config.dump());
  const auto refusal = [&](float last_of_head) {
    std::vector<float> zeros(static_cast<std::size_t>(layout.size()));
    zeros.back() = last_of_head;
    std::vector<io::SafetensorsTensor> tensors;
    for (const nn::Parameter& parameter : layout.parameters()) {
      const auto size = static_cast<std::size_t>(parameter.size());
      const bool is_head = parameter.name == "lm_head.weight";
      tensors.push_back({parameter.name, Dtype::f32, parameter.shape,
                         is_head ? std::span(zeros).last(size) : std::span(zeros).first(size)});
    }
    io::write_safetensors(folder / "model.safetensors", tensors, {});
    return test::message_of<InputError>(
        [&] { (void)nn::open_model(serial_host(), folder.path(), Dtype::f32, 0); });
  };
  EXPECT_EQ(refusal(0.0F), "");
  EXPECT_TRUE(test::contains(refusal(1.0F), "lm_head.weight: differs from model.embed_tokens"));
}

}  // namespace
}  // namespace katt
