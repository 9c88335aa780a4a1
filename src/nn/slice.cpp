#include "nn/slice.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/error.hpp"

namespace katt::nn {

Slice::Slice(const LlamaConfig& config, const ranks::Place& place)
    : tensor(place.layout.tensor),
      tensor_rank(place.tensor),
      embedding(place.is_first_stage()),
      head(place.is_last_stage()) {
  const std::int64_t stages = place.layout.pipeline;
  const std::int64_t all = stages * place.layout.virtual_stages;
  for (std::int64_t part = place.stage; part < all; part += stages) {
    const std::int64_t first = part * config.num_hidden_layers / all;
    parts.push_back({first, (part + 1) * config.num_hidden_layers / all - first});
    blocks += parts.back().count;
  }
}

Slice Slice::of_part(std::size_t v) const {
  Slice part = *this;
  part.parts = {parts[v]};
  part.blocks = parts[v].count;
  part.embedding = embedding && v == 0;
  part.head = head && v + 1 == parts.size();
  return part;
}

bool Slice::has_block(std::int64_t block) const {
  return std::ranges::any_of(parts, [&](const ranks::Part& part) {
    return block >= part.begin && block < part.begin + part.count;
  });
}

namespace {

/// "1, 2, 4".
std::string divisors_of(std::int64_t n) {
  std::string text;
  for (std::int64_t t = 1; t <= n; ++t) {
    if (n % t == 0) text += (text.empty() ? "" : ", ") + std::to_string(t);
  }
  return text;
}

}  // namespace

void check_layout(const LlamaConfig& config, const ranks::Layout& layout) {
  if (config.ternary && layout.tensor > 1) {
    throw InputError("--tensor " + std::to_string(layout.tensor) +
                     ": the model is ternary, with scales of whole weights and tokens that no rank "
                     "would have, expected 1");
  }
  const std::int64_t heads = std::gcd(config.num_attention_heads, config.num_key_value_heads);
  const std::int64_t common = std::gcd(heads, config.intermediate_size);
  if (common % layout.tensor != 0) {
    throw InputError("--tensor " + std::to_string(layout.tensor) + ": the model has " +
                     std::to_string(config.num_attention_heads) + " heads, " +
                     std::to_string(config.num_key_value_heads) + " K/V heads and " +
                     std::to_string(config.intermediate_size) +
                     " columns of the MLP, expected a divisor of all: " + divisors_of(common));
  }
  if (layout.context_variant == ranks::ContextVariant::ulysses &&
      heads / layout.tensor % layout.context != 0) {
    throw InputError(
        "--context " + std::to_string(layout.context) + " --context-variant ulysses: a rank has " +
        std::to_string(config.num_attention_heads / layout.tensor) + " heads and " +
        std::to_string(config.num_key_value_heads / layout.tensor) +
        " K/V heads, expected a divisor of both: " + divisors_of(heads / layout.tensor));
  }
  if (layout.pipeline > config.num_hidden_layers) {
    throw InputError("--pipeline " + std::to_string(layout.pipeline) + ": the model has " +
                     std::to_string(config.num_hidden_layers) +
                     " blocks, expected at most as many stages");
  }
  if (layout.virtual_stages == 1) return;
  if (layout.pipeline == 1) {
    throw InputError("--virtual-stages " + std::to_string(layout.virtual_stages) +
                     ": --pipeline is 1, expected 2 or more stages, which take turns");
  }
  if (std::int64_t{layout.pipeline} * layout.virtual_stages > config.num_hidden_layers) {
    throw InputError("--pipeline " + std::to_string(layout.pipeline) + " --virtual-stages " +
                     std::to_string(layout.virtual_stages) + ": the model has " +
                     std::to_string(config.num_hidden_layers) +
                     " blocks, expected at most as many parts");
  }
}

LlamaConfig part_of_config(const LlamaConfig& config, const Slice& slice) {
  LlamaConfig part = config;
  part.num_attention_heads /= slice.tensor;
  part.num_key_value_heads /= slice.tensor;
  part.intermediate_size /= slice.tensor;
  part.vocab_size = ranks::part_of(config.vocab_size, slice.tensor, slice.tensor_rank).count;
  part.num_hidden_layers = slice.blocks;
  return part;
}

}  // namespace katt::nn
