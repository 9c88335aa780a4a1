#include "nn/slice.hpp"

#include <numeric>
#include <string>

#include "core/error.hpp"

namespace katt::nn {

Slice::Slice(const LlamaConfig& config, const dist::Place& place)
    : tensor(place.layout.tensor),
      tensor_rank(place.tensor),
      embedding(place.is_first_stage()),
      head(place.is_last_stage()) {
  const std::int64_t stages = place.layout.pipeline;
  first_block = place.stage * config.num_hidden_layers / stages;
  blocks = (place.stage + 1) * config.num_hidden_layers / stages - first_block;
}

void check_layout(const LlamaConfig& config, const dist::Layout& layout) {
  if (config.ternary && layout.tensor > 1) {
    throw InputError("--tensor " + std::to_string(layout.tensor) +
                     ": the model is ternary, with scales of whole weights and tokens that no rank "
                     "would have, expected 1");
  }
  const std::int64_t common = std::gcd(
      std::gcd(config.num_attention_heads, config.num_key_value_heads), config.intermediate_size);
  if (common % layout.tensor != 0) {
    std::string divisors;
    for (std::int64_t t = 1; t <= common; ++t) {
      if (common % t == 0) divisors += (divisors.empty() ? "" : ", ") + std::to_string(t);
    }
    throw InputError("--tensor " + std::to_string(layout.tensor) + ": the model has " +
                     std::to_string(config.num_attention_heads) + " heads, " +
                     std::to_string(config.num_key_value_heads) + " K/V heads and " +
                     std::to_string(config.intermediate_size) +
                     " columns of the MLP, expected a divisor of all: " + divisors);
  }
  if (layout.pipeline > config.num_hidden_layers) {
    throw InputError("--pipeline " + std::to_string(layout.pipeline) + ": the model has " +
                     std::to_string(config.num_hidden_layers) +
                     " blocks, expected at most as many stages");
  }
}

LlamaConfig part_of_config(const LlamaConfig& config, const Slice& slice) {
  LlamaConfig part = config;
  part.num_attention_heads /= slice.tensor;
  part.num_key_value_heads /= slice.tensor;
  part.intermediate_size /= slice.tensor;
  part.vocab_size = dist::part_of(config.vocab_size, slice.tensor, slice.tensor_rank).count;
  part.num_hidden_layers = slice.blocks;
  return part;
}

}  // namespace katt::nn
