#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "nn/config.hpp"

namespace katt::nn {

/// One tensor of a Hugging Face checkpoint and its place among all parameters.
struct Parameter {
  std::string name;                 ///< e.g. "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< (out, in), or (out) for norms and biases
  std::int64_t offset = 0;          ///< of its first element

  [[nodiscard]] std::int64_t size() const {
    return shape.size() == 1 ? shape[0] : shape[0] * shape[1];
  }
};

/// Where the parameters of a model lie in one flat array: so that gradients, optimizer state and
/// copies in another dtype are arrays of the same form, and q, k and v, and gate and up, are one
/// matrix each. Between the tensors lie elements of padding, which stay zero.
class ParameterLayout {
 public:
  explicit ParameterLayout(const LlamaConfig& config);

  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Elements of the flat array.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Elements of the tensors alone: the number of parameters.
  [[nodiscard]] std::int64_t count() const;

 private:
  void begin_group();
  void add(std::string name, std::vector<std::int64_t> shape);

  std::vector<Parameter> parameters_;
  std::int64_t size_ = 0;
};

/// The parameters of multi-head attention as the operators take them; biases are empty where the
/// model has none.
struct AttentionWeights {
  TensorRef<2> qkv;  ///< (q_size + 2·kv_size, hidden): the rows of q's heads, of k's, then of v's
  TensorRef<1> qkv_bias{};
  TensorRef<2> o;  ///< (hidden, q_size)
  TensorRef<1> o_bias{};
};

/// Those of one block.
struct BlockWeights : AttentionWeights {
  TensorRef<1> input_norm;  ///< (hidden)
  TensorRef<1> post_norm;   ///< (hidden)
  TensorRef<2> gate_up;     ///< (2·intermediate, hidden)
  TensorRef<1> gate_up_bias;
  TensorRef<2> down;  ///< (hidden, intermediate)
  TensorRef<1> down_bias;
};

/// All parameters, or their gradients, in a flat array.
struct Weights {
  TensorRef<2> embedding;  ///< (vocab, hidden)
  TensorRef<2> head;       ///< (vocab, hidden); the embedding itself where they are tied
  TensorRef<1> norm;       ///< (hidden)
  std::vector<BlockWeights> blocks;
};

/// The tensors of a flat array of the layout's size.
[[nodiscard]] Weights bind_weights(const LlamaConfig& config, const ParameterLayout& layout,
                                   Dtype dtype, void* data);

}  // namespace katt::nn
