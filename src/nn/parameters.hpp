#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "nn/config.hpp"
#include "nn/slice.hpp"
#include "ops/ternary_linear/ternary_linear_pack.hpp"

namespace katt::nn {

/// One tensor of a Hugging Face checkpoint, or the part of it that this rank holds, and its place
/// among all parameters.
struct Parameter {
  std::string name;                 ///< e.g. "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< (out, in), or (out) for norms and biases
  std::int64_t offset = 0;          ///< offset of its first element

  std::vector<std::int64_t> whole{};  ///< shape of the whole tensor
  std::int64_t whole_offset = 0;      ///< offset in the layout of the whole model
  int axis = -1;                      ///< axis along which it is cut; −1: it is whole
  std::int64_t begin = 0;             ///< begin of the part on that axis
  bool is_copy = false;               ///< an embedding that another stage holds, too
  bool is_ternary = false;            ///< a projection of a ternary model
  bool is_packed = false;             ///< it lies packed elsewhere and has no place in the array

  [[nodiscard]] std::int64_t size() const {
    return shape.size() == 1 ? shape[0] : shape[0] * shape[1];
  }
  [[nodiscard]] std::int64_t whole_size() const {
    return whole.size() == 1 ? whole[0] : whole[0] * whole[1];
  }
  /// Index in the whole tensor of element i of the part.
  [[nodiscard]] std::int64_t whole_index(std::int64_t i) const {
    if (axis < 0) return i;
    if (axis == 0) return i + begin * (whole.size() == 1 ? 1 : whole[1]);
    return i / shape[1] * whole[1] + begin + i % shape[1];
  }
};

/// The places of a model's parameters in one flat array. So gradients, optimizer state and copies
/// in another dtype are arrays of the same form, q, k and v are one matrix, and gate and up are
/// another. Between the tensors lie elements of padding, which stay zero.
class ParameterLayout {
 public:
  /// Layout of the whole model.
  explicit ParameterLayout(const LlamaConfig& config);
  /// Layout of a part of it. `packs_ternary`: the projections of a ternary model take no room.
  ParameterLayout(const LlamaConfig& config, const Slice& slice, bool packs_ternary = false);

  [[nodiscard]] const Slice& slice() const { return slice_; }

  [[nodiscard]] const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Elements of the flat array.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Elements of the tensors alone: the number of parameters.
  [[nodiscard]] std::int64_t count() const;

 private:
  void begin_group();
  /// Adds a tensor if the part has it; `axis`: tensor parallel ranks cut it along this axis.
  void add(std::string name, std::vector<std::int64_t> shape, int axis, bool is_ternary = false);

  Slice slice_;
  bool packs_ternary_;
  std::vector<Parameter> parameters_;
  std::int64_t size_ = 0;
  std::int64_t whole_size_ = 0;
  bool is_here_ = true;  ///< true: added tensors belong to the part
};

/// The weight of a projection: a matrix or, in a ternary model, its packed form. The matrix then
/// has extents and, in inference, no memory.
struct Projection : TensorRef<2> {
  ternary_linear::PackedTernary packed{};

  Projection() = default;
  Projection(const TensorRef<2>& matrix)  // NOLINT(google-explicit-constructor)
      : TensorRef<2>(matrix) {}
};

/// The parameters of multi-head attention as the operators take them; biases are empty when the
/// model has none.
struct AttentionWeights {
  Projection qkv;  ///< (q_size + 2·kv_size, hidden): the rows of q's heads, of k's, then of v's
  TensorRef<1> qkv_bias{};
  Projection o;  ///< (hidden, q_size)
  TensorRef<1> o_bias{};
};

/// The parameters of one block.
struct BlockWeights : AttentionWeights {
  TensorRef<1> input_norm;  ///< (hidden)
  TensorRef<1> post_norm;   ///< (hidden)
  Projection gate_up;       ///< (2·intermediate, hidden)
  TensorRef<1> gate_up_bias;
  Projection down;  ///< (hidden, intermediate)
  TensorRef<1> down_bias;
};

/// All parameters, or their gradients, in a flat array.
struct Weights {
  TensorRef<2> embedding;  ///< (vocab, hidden)
  TensorRef<2> head;       ///< (vocab, hidden); the embedding itself when they are tied
  TensorRef<1> norm;       ///< (hidden)
  std::vector<BlockWeights> blocks;
};

/// The tensors of a flat array of the layout's size; `config` describes the whole model. Tensors of
/// other stages are empty.
[[nodiscard]] Weights bind_weights(const LlamaConfig& config, const ParameterLayout& layout,
                                   Dtype dtype, void* data);

/// Leaves the biases of o and down to the first rank of a tensor group: the other ranks would add
/// them to the same sum once more.
void drop_repeated_biases(Weights& weights, const Slice& slice);

}  // namespace katt::nn
