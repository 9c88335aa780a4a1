#include "nn/parameters.hpp"

#include <numeric>

namespace katt::nn {

namespace {

/// Groups begin at multiples of so many elements: 128 bytes in 16 bits.
constexpr std::int64_t group_alignment = 64;

}  // namespace

ParameterLayout::ParameterLayout(const LlamaConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t intermediate = config.intermediate_size;
  const auto add_projections = [&](const std::string& prefix,
                                   std::initializer_list<std::pair<const char*, std::int64_t>> rows,
                                   std::int64_t columns, bool bias) {
    begin_group();
    for (const auto& [name, count] : rows) add(prefix + name + ".weight", {count, columns});
    if (!bias) return;
    begin_group();
    for (const auto& [name, count] : rows) add(prefix + name + ".bias", {count});
  };
  const auto add_norm = [&](const std::string& name) {
    begin_group();
    add(name + ".weight", {hidden});
  };
  begin_group();
  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add_norm(layer + "input_layernorm");
    add_projections(
        layer + "self_attn.",
        {{"q_proj", config.q_size()}, {"k_proj", config.kv_size()}, {"v_proj", config.kv_size()}},
        hidden, config.attention_bias);
    add_projections(layer + "self_attn.", {{"o_proj", hidden}}, config.q_size(),
                    config.attention_bias);
    add_norm(layer + "post_attention_layernorm");
    add_projections(layer + "mlp.", {{"gate_proj", intermediate}, {"up_proj", intermediate}},
                    hidden, config.mlp_bias);
    add_projections(layer + "mlp.", {{"down_proj", hidden}}, intermediate, config.mlp_bias);
  }
  add_norm("model.norm");
  if (!config.tie_word_embeddings) {
    begin_group();
    add("lm_head.weight", {config.vocab_size, hidden});
  }
  begin_group();
}

std::int64_t ParameterLayout::count() const {
  return std::accumulate(
      parameters_.begin(), parameters_.end(), std::int64_t{0},
      [](std::int64_t sum, const Parameter& parameter) { return sum + parameter.size(); });
}

void ParameterLayout::begin_group() {
  size_ = (size_ + group_alignment - 1) / group_alignment * group_alignment;
}

void ParameterLayout::add(std::string name, std::vector<std::int64_t> shape) {
  parameters_.push_back({std::move(name), std::move(shape), size_});
  size_ += parameters_.back().size();
}

Weights bind_weights(const LlamaConfig& config, const ParameterLayout& layout, Dtype dtype,
                     void* data) {
  const std::vector<Parameter>& all = layout.parameters();
  std::size_t next = 0;
  // The tensors are taken in the order in which the layout has them; `parts` of them are one.
  const auto take = [&](std::size_t parts) {
    const Parameter& first = all[next];
    std::int64_t rows = 0;
    for (std::size_t part = 0; part < parts; ++part) rows += all[next++].shape[0];
    auto* address =
        static_cast<std::byte*>(data) + static_cast<std::size_t>(first.offset) * size_of(dtype);
    return std::tuple(static_cast<void*>(address), rows, first.shape.back());
  };
  const auto matrix = [&](std::size_t parts) {
    const auto [address, rows, columns] = take(parts);
    return TensorRef<2>(address, dtype, {rows, columns});
  };
  const auto vector = [&](std::size_t parts, bool present = true) {
    if (!present) return TensorRef<1>();
    const auto [address, rows, columns] = take(parts);
    return TensorRef<1>(address, dtype, {rows});
  };
  Weights weights;
  weights.embedding = matrix(1);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    BlockWeights& block = weights.blocks.emplace_back();
    block.input_norm = vector(1);
    block.qkv = matrix(3);
    block.qkv_bias = vector(3, config.attention_bias);
    block.o = matrix(1);
    block.o_bias = vector(1, config.attention_bias);
    block.post_norm = vector(1);
    block.gate_up = matrix(2);
    block.gate_up_bias = vector(2, config.mlp_bias);
    block.down = matrix(1);
    block.down_bias = vector(1, config.mlp_bias);
  }
  weights.norm = vector(1);
  weights.head = config.tie_word_embeddings ? weights.embedding : matrix(1);
  return weights;
}

}  // namespace katt::nn
