// config.json of a model (nn/config.hpp).

#include "nn/config.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_text)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  katt::nn::LlamaConfig config;
  const std::string text(fuzz::text_of(data, size));
  if (!fuzz::is_taken([&] { config = katt::nn::parse_config("config.json", text); })) return 0;
  fuzz::require(config.hidden_size > 0 && config.head_dim % 8 == 0 &&
                    config.num_attention_heads % config.num_key_value_heads == 0,
                "a shape that no model has");
  // A training saves the same model.
  const katt::nn::LlamaConfig again =
      katt::nn::parse_config("config.json", katt::nn::config_json_f32(config));
  fuzz::require(again.hidden_size == config.hidden_size && again.ternary == config.ternary &&
                    again.rope.theta == config.rope.theta,
                "a saved configuration is another one");
  return 0;
}
