#include <gtest/gtest.h>

#include <limits>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "nn/config.hpp"
#include "tests/message_of.hpp"
#include "tests/temporary_folder.hpp"

namespace katt {
namespace {

using nlohmann::json;
using test::message_of;

json tiny() {
  return {{"model_type", "llama"},    {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 256},        {"hidden_size", 64},
          {"intermediate_size", 176}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}};
}

nn::LlamaConfig parse(const json& config) { return nn::parse_config("c.json", config.dump()); }

/// Message with which a configuration is refused after a change.
std::string refusal(const std::string& key, const json& value) {
  json config = tiny();
  if (value.is_discarded()) config.erase(key);
  else config[key] = value;
  return message_of<InputError>([&] { (void)parse(config); });
}

const json llama3 = {{"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192},
                     {"rope_type", "llama3"}};

TEST(Config, FillsInTheDefaultsOfTransformers) {
  const nn::LlamaConfig config = parse(tiny());
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rms_norm_eps, 1e-6F);
  EXPECT_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.scaling, rope::Scaling::none);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
}

TEST(Config, ReadsOneEndOfATextOrAList) {
  using Ids = std::vector<std::int64_t>;
  const auto ends = [](const json& value) {
    json config = tiny();
    config["eos_token_id"] = value;
    return parse(config).eos_token_ids;
  };
  EXPECT_EQ(parse(tiny()).eos_token_ids, Ids());
  EXPECT_EQ(ends(nullptr), Ids());
  EXPECT_EQ(ends(2), Ids{2});
  EXPECT_EQ(ends({7, 2, 7}), (Ids{7, 2}));
  EXPECT_EQ(ends(json::array()), Ids());
  // no token of the vocabulary
  EXPECT_EQ(ends({-1, 255, 256, std::numeric_limits<std::uint64_t>::max()}), Ids{255});
  for (const json& value : {json("2"), json(2.5), json({1, "x"}), json({{1}}), json({{"id", 1}})}) {
    EXPECT_TRUE(test::contains(refusal("eos_token_id", value), "c.json: eos_token_id: holds "))
        << value;
  }
}

TEST(Config, ReadsTheEndsOfGenerationConfigToo) {
  const test::TemporaryFolder folder;
  json config = tiny();
  config["eos_token_id"] = 2;
  test::write_bytes(folder / "config.json", config.dump());
  const auto ends = [&](const std::string& text) {
    test::write_bytes(folder / "generation_config.json", text);
    return nn::read_config(folder.path()).eos_token_ids;
  };
  using Ids = std::vector<std::int64_t>;
  EXPECT_EQ(ends(R"({"eos_token_id": [9, 2, 4]})"), (Ids{2, 9, 4}));
  EXPECT_EQ(ends(R"({"eos_token_id": 5, "temperature": 0.6})"), (Ids{2, 5}));
  EXPECT_EQ(ends(R"({"eos_token_id": null})"), Ids{2});
  EXPECT_EQ(ends("{}"), Ids{2});
  EXPECT_TRUE(
      test::contains(message_of<InputError>([&] { (void)ends(R"({"eos_token_id": "x"})"); }),
                     "generation_config.json: eos_token_id: holds \"x\", expected a token id"));
  EXPECT_TRUE(
      test::contains(message_of<InputError>([&] { (void)ends("[]"); }), "expected a JSON object"));
}

TEST(Config, ReadsBothFormsOfRope) {
  json old = tiny();
  old["rope_theta"] = 500000.0;
  old["rope_scaling"] = llama3;
  json recent = tiny();
  recent["rope_parameters"] = llama3;
  recent["rope_parameters"]["rope_theta"] = 500000.0;
  for (const json& form : {old, recent}) {
    const rope::FrequencyArgs rope = parse(form).rope;
    EXPECT_EQ(rope.theta, 500000.0);
    EXPECT_EQ(rope.scaling, rope::Scaling::llama3);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.original_max_position, 8192);
  }
  recent["original_max_position_embeddings"] = 4096;
  EXPECT_EQ(parse(recent).rope.original_max_position, 4096) << "as transformers";
  recent["rope_scaling"] = recent["rope_parameters"];
  EXPECT_EQ(parse(recent).rope.scaling, rope::Scaling::llama3);
  recent["rope_scaling"]["factor"] = 4.0;
  EXPECT_TRUE(test::contains(message_of<InputError>([&] { (void)parse(recent); }),
                             "expected nothing beside rope_parameters, or the same"));
  old["rope_scaling"] = nullptr;
  EXPECT_EQ(parse(old).rope.scaling, rope::Scaling::none);
}

TEST(Config, CountsThePaddingAsPyTorch) {
  const auto pad = [](const json& value) {
    json config = tiny();
    config["pad_token_id"] = value;
    return parse(config).pad_token_id;
  };
  EXPECT_EQ(pad(nullptr), -1);
  EXPECT_EQ(pad(5), 5);
  EXPECT_EQ(pad(-1), parse(tiny()).vocab_size - 1);
  EXPECT_EQ(pad(1 << 30), -1);
  EXPECT_THROW((void)pad("x"), InputError);
}

TEST(Config, TakesAnExplicitHeadDim) {
  json config = tiny();
  config["head_dim"] = 32;
  config["num_key_value_heads"] = 2;
  config["attention_bias"] = true;
  config["tie_word_embeddings"] = true;
  const nn::LlamaConfig parsed = parse(config);
  EXPECT_EQ(parsed.q_size(), 128);
  EXPECT_EQ(parsed.kv_size(), 64);
  EXPECT_TRUE(parsed.attention_bias);
  EXPECT_TRUE(parsed.tie_word_embeddings);
}

TEST(Config, RefusesByName) {
  const auto names = [](const std::string& key, const json& value, const std::string& part) {
    const std::string message = refusal(key, value);
    EXPECT_TRUE(test::contains(message, "c.json: " + key));
    EXPECT_TRUE(test::contains(message, part));
    EXPECT_FALSE(test::contains(message, "\n"));
  };
  const json missing(json::value_t::discarded);
  names("model_type", "mistral", "holds \"mistral\", expected \"llama\"");
  names("model_type", missing, "is missing");
  names("architectures", {"LlamaForSequenceClassification"}, "expected [\"LlamaForCausalLM\"]");
  names("hidden_act", "gelu", "expected \"silu\"");
  names("vocab_size", missing, "is missing");
  names("vocab_size", 0, "expected an integer of 1");
  names("vocab_size", -5, "expected an integer of 1");
  names("vocab_size", 1e30, "expected an integer of 1");
  names("hidden_size", "64", "expected an integer");
  names("hidden_size", 65, "expected a multiple of num_attention_heads");
  names("head_dim", 12, "is 12, expected a multiple of 8");
  names("head_dim", 512, "up to 256");
  names("num_key_value_heads", 3, "expected a divisor");
  names("rms_norm_eps", -1.0, "expected a positive number");
  names("tie_word_embeddings", 1, "expected true or false");
  names("quantization_config", {{"bits", 4}}, "quant_method: is missing, expected \"bitnet\"");
  names("quantization_config", 4, "expected an object");
  names("quantization_config", {{"quant_method", "awq"}}, "expected \"bitnet\"");
  const auto bitnet = [](const char* key, const json& value) {
    json made{{"quant_method", "bitnet"},
              {"linear_class", "autobitlinear"},
              {"quantization_mode", "online"}};
    made[key] = value;
    return made;
  };
  names("quantization_config", bitnet("quantization_mode", "offline"), "expected \"online\"");
  names("quantization_config", bitnet("linear_class", "bitlinear"), "expected \"autobitlinear\"");
  names("quantization_config", bitnet("use_rms_norm", true), "use_rms_norm: holds true");
  names("quantization_config", bitnet("modules_to_not_convert", {"o_proj"}),
        "expected [\"lm_head\"]");
  names("sliding_window", 4096, "not supported");
  names("attention_dropout", 0.1, "expected 0.0");
  names("rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}, "\"yarn\"");
  names("rope_scaling", 3, "expected an object");
  json bad = llama3;
  bad.erase("factor");
  names("rope_scaling", bad, "factor: is missing");
  bad = llama3;
  bad["high_freq_factor"] = 0.5;
  names("rope_parameters", bad, "more than low_freq_factor");
}

TEST(Config, KnowsTernaryProjections) {
  const auto changed = [](const json& changes) {
    json config = tiny();
    config.update(changes);
    return parse(config);
  };
  const json bitnet = {{"quant_method", "bitnet"},
                       {"linear_class", "autobitlinear"},
                       {"quantization_mode", "online"},
                       {"modules_to_not_convert", {"lm_head"}}};
  EXPECT_FALSE(changed(json::object()).ternary);
  EXPECT_TRUE(changed({{"quantization_config", bitnet}}).ternary);
  for (const json& changes :
       {json{{"linear_class", nullptr}}, json{{"quantization_mode", "offline"}},
        json{{"modules_to_not_convert", json::array()}}}) {
    json other = bitnet;
    other.update(changes);
    EXPECT_THROW((void)changed({{"quantization_config", other}}), InputError) << changes;
  }
  EXPECT_TRUE(
      test::contains(message_of<InputError>([&] {
                       (void)changed({{"quantization_config", bitnet}, {"attention_bias", true}});
                     }),
                     "attention_bias: holds true, expected false: ternary"));
  // The configuration that training writes for a ternary model reads as ternary.
  const nn::LlamaConfig made = nn::with_ternary(changed(json::object()));
  EXPECT_TRUE(nn::parse_config("c.json", nn::config_json_f32(made)).ternary);
}

TEST(Config, RefusesWhatIsNoConfiguration) {
  const auto refuses = [](const std::string& text) {
    return message_of<InputError>([&] { (void)nn::parse_config("c.json", text); });
  };
  EXPECT_TRUE(test::contains(refuses(""), "not valid JSON"));
  EXPECT_TRUE(test::contains(refuses("[1]"), "expected a JSON object"));
  EXPECT_TRUE(test::contains(refuses(R"({"model_type":"llama","model_type":"llama"})"), "twice"));
  EXPECT_TRUE(test::contains(refuses(R"({"a":)" + std::string(100000, '[')), "nested"));
}

TEST(Config, StoresTheDtype) {
  json config = tiny();
  config["torch_dtype"] = "bfloat16";
  const json stored = json::parse(nn::config_json_f32(parse(config)));
  EXPECT_EQ(stored["torch_dtype"], "float32");
  EXPECT_EQ(stored["hidden_size"], 64);
}

}  // namespace
}  // namespace katt
