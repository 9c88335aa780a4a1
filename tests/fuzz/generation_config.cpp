// generation_config.json beside a config.json (nn/config.hpp).

#include "nn/config.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace fuzz = katt::test::fuzz;

KATT_FUZZ_MUTATOR(katt::test::damage_text)

namespace {

constexpr const char* config_json = R"({"model_type": "llama", "vocab_size": 32, "hidden_size": 16,
  "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "eos_token_id": 2})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  static const auto config = folder.file("config.json", config_json);
  static_cast<void>(folder.file("generation_config.json", fuzz::text_of(data, size)));
  fuzz::is_taken([] { static_cast<void>(katt::nn::read_config(config.parent_path())); });
  return 0;
}
