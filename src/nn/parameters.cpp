#include "nn/parameters.hpp"

#include <numeric>

namespace katt::nn {

namespace {

/// Groups begin at multiples of this many elements: 128 bytes in 16 bits.
constexpr std::int64_t group_alignment = 64;

}  // namespace

ParameterLayout::ParameterLayout(const LlamaConfig& config)
    : ParameterLayout(config, Slice(config)) {}

ParameterLayout::ParameterLayout(const LlamaConfig& config, const Slice& slice, bool packs_ternary)
    : slice_(slice), packs_ternary_(packs_ternary) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t intermediate = config.intermediate_size;
  // Tensor parallel ranks cut the rows of the matrices into heads and MLP, and the columns of the
  // matrices out of them; a bias is cut like the rows.
  const auto add_projections = [&](const std::string& prefix,
                                   std::initializer_list<std::pair<const char*, std::int64_t>> rows,
                                   std::int64_t columns, bool bias, int axis) {
    begin_group();
    for (const auto& [name, count] : rows) {
      add(prefix + name + ".weight", {count, columns}, axis, config.ternary);
    }
    if (!bias) return;
    begin_group();
    for (const auto& [name, count] : rows)
      add(prefix + name + ".bias", {count}, axis == 0 ? 0 : -1);
  };
  const auto add_norm = [&](const std::string& name) {
    begin_group();
    add(name + ".weight", {hidden}, -1);
  };
  is_here_ = slice.embedding;
  begin_group();
  add("model.embed_tokens.weight", {config.vocab_size, hidden}, 0);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    is_here_ = slice.has_block(i);
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add_norm(layer + "input_layernorm");
    add_projections(
        layer + "self_attn.",
        {{"q_proj", config.q_size()}, {"k_proj", config.kv_size()}, {"v_proj", config.kv_size()}},
        hidden, config.attention_bias, 0);
    add_projections(layer + "self_attn.", {{"o_proj", hidden}}, config.q_size(),
                    config.attention_bias, 1);
    add_norm(layer + "post_attention_layernorm");
    add_projections(layer + "mlp.", {{"gate_proj", intermediate}, {"up_proj", intermediate}},
                    hidden, config.mlp_bias, 0);
    add_projections(layer + "mlp.", {{"down_proj", hidden}}, intermediate, config.mlp_bias, 1);
  }
  is_here_ = slice.head;
  add_norm("model.norm");
  if (!config.tie_word_embeddings) {
    begin_group();
    add("lm_head.weight", {config.vocab_size, hidden}, 0);
  } else if (slice.head && !slice.embedding) {
    begin_group();
    const std::int64_t whole_size = whole_size_;
    whole_size_ = 0;  // the embedding is the first tensor of the model
    add("model.embed_tokens.weight", {config.vocab_size, hidden}, 0);
    parameters_.back().is_copy = true;
    whole_size_ = whole_size;
  }
  begin_group();
}

std::int64_t ParameterLayout::count() const {
  return std::accumulate(
      parameters_.begin(), parameters_.end(), std::int64_t{0},
      [](std::int64_t sum, const Parameter& parameter) { return sum + parameter.size(); });
}

void ParameterLayout::begin_group() {
  const auto align = [](std::int64_t& size) {
    size = (size + group_alignment - 1) / group_alignment * group_alignment;
  };
  align(size_);
  align(whole_size_);
}

void ParameterLayout::add(std::string name, std::vector<std::int64_t> shape, int axis,
                          bool is_ternary) {
  Parameter parameter{.name = std::move(name), .shape = shape, .whole = std::move(shape)};
  parameter.whole_offset = whole_size_;
  whole_size_ += parameter.size();
  if (!is_here_) return;
  parameter.offset = size_;
  if (axis >= 0 && slice_.tensor > 1) {
    const auto at = static_cast<std::size_t>(axis);
    const ranks::Part part = ranks::part_of(parameter.whole[at], slice_.tensor, slice_.tensor_rank);
    parameter.axis = axis;
    parameter.begin = part.begin;
    parameter.shape[at] = part.count;
  }
  parameter.is_ternary = is_ternary;
  parameter.is_packed = is_ternary && packs_ternary_;
  if (!parameter.is_packed) size_ += parameter.size();
  parameters_.push_back(std::move(parameter));
}

Weights bind_weights(const LlamaConfig& config, const ParameterLayout& layout, Dtype dtype,
                     void* data) {
  const std::vector<Parameter>& all = layout.parameters();
  std::size_t next = 0;
  // Takes the tensors in the order of the layout; `parts` of them form one matrix.
  const auto take = [&](std::size_t parts) {
    const Parameter& first = all[next];
    std::int64_t rows = 0;
    for (std::size_t part = 0; part < parts; ++part) rows += all[next++].shape[0];
    std::byte* address = nullptr;
    if (!first.is_packed) {
      address =
          static_cast<std::byte*>(data) + static_cast<std::size_t>(first.offset) * size_of(dtype);
    }
    return std::tuple(static_cast<void*>(address), rows, first.shape.back());
  };
  const auto matrix = [&](std::size_t parts) {
    const auto [address, rows, columns] = take(parts);
    return TensorRef<2>(address, dtype, {rows, columns});
  };
  const Slice& slice = layout.slice();
  const auto vector = [&](std::size_t parts, bool present = true) {
    if (!present) return TensorRef<1>();
    const auto [address, rows, columns] = take(parts);
    return TensorRef<1>(address, dtype, {rows});
  };
  Weights weights;
  if (slice.embedding) weights.embedding = matrix(1);
  for (std::int64_t i = 0; i < slice.blocks; ++i) {
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
  if (!slice.head) return weights;
  weights.norm = vector(1);
  weights.head = config.tie_word_embeddings && slice.embedding ? weights.embedding : matrix(1);
  return weights;
}

void drop_repeated_biases(Weights& weights, const Slice& slice) {
  if (slice.tensor_rank == 0) return;
  for (BlockWeights& block : weights.blocks) {
    block.o_bias = {};
    block.down_bias = {};
  }
}

}  // namespace katt::nn
