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
  std::int64_t vocab_size = 0;                  ///< tokens of the vocabulary
  std::int64_t hidden_size = 0;                 ///< elements of a token in the residual stream
  std::int64_t intermediate_size = 0;           ///< columns of gate and up
  std::int64_t num_hidden_layers = 0;           ///< blocks
  std::int64_t num_attention_heads = 0;         ///< query heads
  std::int64_t num_key_value_heads = 0;         ///< key/value heads, a divisor of the query heads
  std::int64_t head_dim = 0;                    ///< elements of a head
  std::int64_t max_position_embeddings = 2048;  ///< positions that the model is made for
  float rms_norm_eps = 1e-6F;                   ///< eps of every rmsnorm
  float initializer_range = 0.02F;              ///< standard deviation of random weights
  bool tie_word_embeddings = false;             ///< true: the head is the embedding
  bool attention_bias = false;                  ///< biases of the q, k, v and o projections
  bool mlp_bias = false;                        ///< biases of the gate, up and down projections
  /// True: the projections of the blocks are those of BitNet b1.58 (Ma et al. 2024,
  /// arXiv:2402.17764), ops/ternary_linear; embedding, norms and head are never ternary.
  bool ternary = false;
  /// Rotary positions, from `rope_parameters` or `rope_theta` and `rope_scaling`.
  rope::FrequencyArgs rope{.precision = rope::AnglePrecision::f32};
  /// Tokens that end a text: eos_token_id, one or a list, within the vocabulary.
  std::vector<std::int64_t> eos_token_ids{};
  /// pad_token_id within the vocabulary, else −1: its embedding is 0 in a random model and gets no
  /// gradient, as with padding_idx of torch.nn.Embedding.
  std::int64_t pad_token_id = -1;
  std::string json;  ///< the text of the file

  /// Columns of q.
  [[nodiscard]] std::int64_t q_size() const { return num_attention_heads * head_dim; }
  /// Columns of k, and of v.
  [[nodiscard]] std::int64_t kv_size() const { return num_key_value_heads * head_dim; }
  /// True when the token ends a text.
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
