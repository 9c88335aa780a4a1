#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "ops/rope/rope.hpp"

namespace katt::nn {

/// The shape of a LLaMA (Touvron et al. 2023, arXiv:2302.13971), named as in a Hugging Face
/// `config.json`.
struct LlamaConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 2048;
  float rms_norm_eps = 1e-6F;
  float initializer_range = 0.02F;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  ///< biases of the q, k, v and o projections
  bool mlp_bias = false;        ///< biases of the gate, up and down projections
  /// True: the projections of the blocks are those of BitNet b1.58 (Ma et al. 2024,
  /// arXiv:2402.17764), ops/ternary_linear; embedding, norms and head are never ternary.
  bool ternary = false;
  rope::FrequencyArgs rope{.precision = rope::AnglePrecision::f32};
  /// Tokens that end a text: eos_token_id, one or a list, within the vocabulary.
  std::vector<std::int64_t> eos_token_ids{};
  std::string json;  ///< the text of the file

  /// Columns of q, and of k or v.
  [[nodiscard]] std::int64_t q_size() const { return num_attention_heads * head_dim; }
  [[nodiscard]] std::int64_t kv_size() const { return num_key_value_heads * head_dim; }
  [[nodiscard]] bool is_end(std::int64_t token) const {
    return std::ranges::find(eos_token_ids, token) != eos_token_ids.end();
  }
};

/// Reads the text of a `config.json` called `name`: `rope_parameters`, or the older `rope_theta`
/// and `rope_scaling`. Throws InputError of one line that names the key, what it holds and what was
/// expected, for every option that this implementation does not compute as Hugging Face's
/// LlamaForCausalLM.
[[nodiscard]] LlamaConfig parse_config(const std::string& name, const std::string& text);

/// Reads `config.json` of a model's folder, and further eos_token_ids from its
/// `generation_config.json`, if there is one. Throws as parse_config().
[[nodiscard]] LlamaConfig read_config(const std::filesystem::path& folder);

/// The same model with ternary projections. Throws InputError when it has biases.
[[nodiscard]] LlamaConfig with_ternary(LlamaConfig config);

/// The text of a `config.json` for the same model stored in f32. A ternary one has the
/// `quantization_config` that transformers gives to a BitNet whose weights are quantised as it runs.
[[nodiscard]] std::string config_json_f32(const LlamaConfig& config);

}  // namespace katt::nn
