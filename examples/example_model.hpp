#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "nn/config.hpp"

/// A model of bytes that is small enough to train in a second, in a folder of its own.
inline std::filesystem::path example_model(const std::string& name, int layers = 2) {
  const auto folder = std::filesystem::temp_directory_path() / ("katt-example-" + name);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64,)"
      << R"( "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2,)"
      << R"( "num_hidden_layers": )" << layers << "}\n";
  return folder;
}

/// A text to learn, as token ids: its bytes.
inline std::vector<std::int32_t> example_text() {
  const std::string line = "Sphinx of black quartz, judge my vow. ";
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 40; ++i) tokens.insert(tokens.end(), line.begin(), line.end());
  return tokens;
}
