#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "io/case_file.hpp"
#include "nn/config.hpp"

namespace katt::test {

/// The Hugging Face checkpoint beside the repository, with what transformers and PyTorch computed.
inline std::filesystem::path llama_tiny() {
  return std::filesystem::path(KATT_SOURCE_DIR) / ".." / "shared" / "cases" / "llama_tiny";
}

#define KATT_SKIP_WITHOUT_LLAMA_TINY()                    \
  if (!std::filesystem::exists(katt::test::llama_tiny())) \
  GTEST_SKIP() << "no folder ../shared/cases/llama_tiny"

inline std::vector<std::int64_t> expected_integers(const std::string& dataset) {
  return io::CaseFile(llama_tiny() / "expected.h5").integers(dataset, {-1}, "(N)").values;
}

/// A configuration of a model that is random and small; `changes` are merged into it.
inline nn::LlamaConfig small_config(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = {
      {"model_type", "llama"},    {"vocab_size", 97},       {"hidden_size", 48},
      {"intermediate_size", 80},  {"num_hidden_layers", 4}, {"num_attention_heads", 6},
      {"num_key_value_heads", 3}, {"head_dim", 8},          {"initializer_range", 0.1}};
  config.update(changes);
  return nn::parse_config("small", config.dump());
}

}  // namespace katt::test
