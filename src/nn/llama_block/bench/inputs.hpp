#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/execution.hpp"
#include "nn/llama_block/llama_block.hpp"
#include "nn/llama_block/llama_block_ref.hpp"
#include "op/adapter.hpp"
#include "op/buffer.hpp"
#include "op/reference/compare.hpp"
#include "op/reference/fill.hpp"
#include "op/reference/new_values.hpp"
#include "op/registry.hpp"

/// The inputs and outputs of a block's adapters.
namespace katt::llama_block {

using bench::Point;

struct Spec {
  const char* name;
  std::int64_t rows, columns;
  float scale = 1.0F;  ///< standard deviation of generated values
  float mean = 0.0F;
};

/// Row sums of squares stay about one from tensor to tensor, as in a model.
inline float of_fan_in(std::int64_t columns) {
  return 1.0F / std::sqrt(static_cast<float>(columns));
}

inline std::vector<Spec> weight_specs(const Shape& s) {
  const std::int64_t halves = 2 * s.intermediate;
  return {{"input_norm", 1, s.hidden, 0.1F, 1.0F},
          {"qkv", s.qkv_size(), s.hidden, of_fan_in(s.hidden)},
          {"o", s.hidden, s.q_size(), of_fan_in(s.q_size())},
          {"post_norm", 1, s.hidden, 0.1F, 1.0F},
          {"gate_up", halves, s.hidden, of_fan_in(s.hidden)},
          {"down", s.hidden, s.intermediate, of_fan_in(s.intermediate)}};
}

inline std::vector<Spec> input_specs(const Shape& s, bool backward) {
  std::vector<Spec> specs = weight_specs(s);
  specs.push_back({"stream", s.tokens(), s.hidden});
  specs.push_back({"delta", s.tokens(), s.hidden});
  if (backward) specs.push_back({"dout", s.tokens(), s.hidden});
  return specs;
}

/// Outputs in the dtype of the block.
inline std::vector<Spec> output_specs(const Shape& s, bool backward) {
  if (backward) return {{"dx", s.tokens(), s.hidden}};
  return {{"h", s.tokens(), s.hidden}, {"delta_out", s.tokens(), s.hidden}};
}

inline std::size_t elements(const std::vector<Spec>& specs) {
  std::size_t count = 0;
  for (const Spec& spec : specs) count += static_cast<std::size_t>(spec.rows * spec.columns);
  return count;
}

using HostValues = std::map<std::string, std::vector<float>>;

/// Tensors by name that own their memory.
class Matrices {
 public:
  Matrices() = default;
  Matrices(Backend backend, Dtype dtype, const std::vector<Spec>& specs,
           const std::string& prefix = "", const std::string& label = "katt::llama_block::") {
    for (const Spec& spec : specs) {
      const std::string name = prefix + spec.name;
      tensors_.emplace(name,
                       bench::Tensor<2>(label + name, backend, dtype, {spec.rows, spec.columns}));
    }
  }
  [[nodiscard]] const bench::Tensor<2>& operator[](const std::string& name) const {
    return tensors_.at(name);
  }
  [[nodiscard]] TensorRef<2> matrix(const std::string& name) const {
    return tensors_.at(name).ref();
  }
  [[nodiscard]] TensorRef<1> row(const std::string& name) const {
    const TensorRef<2> all = matrix(name);
    return {all.data, all.dtype, {all.extent[1]}};
  }
  void poison() const {
    for (const auto& [name, tensor] : tensors_) tensor.poison();
  }
  /// Adds every expected value of one tensor, in an output of the dtype.
  void compare(testing::Comparison& comparison, const Expected& expected, Dtype dtype) const {
    for (const auto& [name, tensor] : tensors_) {
      testing::add_all(comparison, name.c_str(), tensor.download(), tensor.ref().extent[1],
                       expected.at(name), dtype);
    }
  }

 private:
  std::map<std::string, bench::Tensor<2>> tensors_;
};

/// The weights, or with the prefix "d" their gradients.
inline nn::BlockWeights weights_of(const Matrices& tensors, const std::string& prefix = "") {
  nn::BlockWeights weights;
  weights.input_norm = tensors.row(prefix + "input_norm");
  weights.qkv = tensors.matrix(prefix + "qkv");
  weights.o = tensors.matrix(prefix + "o");
  weights.post_norm = tensors.row(prefix + "post_norm");
  weights.gate_up = tensors.matrix(prefix + "gate_up");
  weights.down = tensors.matrix(prefix + "down");
  return weights;
}

inline Shape shape_of(const Point& point) {
  return {.batch = point.integer("batch"),
          .seq = point.integer("seq_q"),
          .hidden = point.integer("hidden"),
          .intermediate = point.integer("intermediate"),
          .heads = point.integer("heads"),
          .kv_heads = point.integer("kv_heads"),
          .head_dim = point.integer("head_dim")};
}

/// The tensors of a pass.
inline Tensors tensors_of(const Matrices& inputs, const Matrices& outputs,
                          const Matrices& gradients, bool backward) {
  Tensors all;
  all.stream = inputs.matrix("stream");
  all.delta = inputs.matrix("delta");
  all.weights = weights_of(inputs);
  if (backward) {
    all.dx = outputs.matrix("dx");
    all.gradients = weights_of(gradients, "d");
  } else {
    all.h = outputs.matrix("h");
    all.delta_out = outputs.matrix("delta_out");
  }
  return all;
}

/// The tensors of a pass without memory, for a rehearsal.
inline Tensors shapes_of(const Shape& s, Dtype dtype) {
  nn::Arena arena;
  const auto rows = [&] { return arena.tensor<2>(dtype, {s.tokens(), s.hidden}); };
  const auto weights = [&](Dtype of) {
    nn::BlockWeights w;
    w.input_norm = arena.tensor<1>(of, {s.hidden});
    w.qkv = arena.tensor<2>(of, {s.qkv_size(), s.hidden});
    w.o = arena.tensor<2>(of, {s.hidden, s.q_size()});
    w.post_norm = arena.tensor<1>(of, {s.hidden});
    w.gate_up = arena.tensor<2>(of, {2 * s.intermediate, s.hidden});
    w.down = arena.tensor<2>(of, {s.hidden, s.intermediate});
    return w;
  };
  return {.stream = rows(),
          .delta = rows(),
          .weights = weights(dtype),
          .h = rows(),
          .delta_out = rows(),
          .dx = rows(),
          .gradients = weights(Dtype::f32)};
}

/// Bytes of a pass; 0 when it cannot run here (the pass itself reports that).
inline std::size_t pass_bytes(const Point& point, const Shape& s, const nn::Kernels& kernels,
                              const ranks::Groups& groups = {}) {
  return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
    try {
      const bool backward = point.pass == "backward";
      const Pass<Exec> rehearsal(exec, s, point.dtype, kernels, shapes_of(s, point.dtype), backward,
                                 true, groups);
      return rehearsal.bytes();
    } catch (const InputError&) {
      return std::size_t{0};
    }
  });
}

inline std::vector<bench::AxisSpec> block_axes() {
  using bench::integer_axis;
  std::vector<bench::AxisSpec> axes{
      integer_axis("batch", 1, 1, "sequences"),
      integer_axis("seq_q", 512, 1, "tokens per sequence"),
      integer_axis("hidden", 576, 1, "width of the residual stream"),
      integer_axis("intermediate", 1536, 1, "width of the feed-forward layer"),
      integer_axis("heads", 9, 1, "query heads"),
      integer_axis("kv_heads", 9, 1, "key/value heads, a divisor of heads"),
      integer_axis("head_dim", 64, 8, "elements per head, a multiple of 8", 256)};
  axes[1].short_name = "seq";
  axes[5].follows = "heads";
  return axes;
}

inline void check_block(const Point& point) {
  const Shape s = shape_of(point);
  if (s.heads % s.kv_heads != 0) {
    throw InputError("kv_heads " + std::to_string(s.kv_heads) + ": expected a divisor of heads, " +
                     std::to_string(s.heads));
  }
  if (s.head_dim % 8 != 0) {
    throw InputError("head_dim " + std::to_string(s.head_dim) + ": expected a multiple of 8");
  }
}

/// The inputs of a case, on the host and the backend.
class Inputs {
 public:
  /// `on_backend`: make the tensors there, too.
  explicit Inputs(const Point& point, bool on_backend = true)
      : shape(shape_of(point)),
        dtype(point.dtype),
        backend(point.backend),
        threads(point.threads),
        backward(point.pass == "backward"),
        tensors(on_backend ? Matrices(backend, dtype, input_specs(shape, backward)) : Matrices()),
        on_backend_(on_backend) {
    std::uint64_t stream = point.seed * 16;
    for (const Spec& spec : input_specs(shape, backward)) {
      std::vector<float>& filled = values[spec.name];
      filled.resize(static_cast<std::size_t>(spec.rows * spec.columns));
      testing::fill(filled, ++stream, dtype, spec.scale);
      if (spec.mean != 0.0F) {
        for (float& value : filled) value = round_to(dtype, value + spec.mean);
      }
      if (on_backend) tensors[spec.name].upload(filled);
    }
    masks = backward && std::ssize(sampled_tokens(shape)) < shape.tokens();
    if (!masks || !on_backend) return;
    const std::vector<Spec> alone{{"dout_sampled", shape.tokens(), shape.hidden}};
    sampled = Matrices(backend, dtype, alone);
  }

  /// Case::change(), on the backend, too.
  [[nodiscard]] std::vector<bench::InputChange> change(std::uint64_t random, bool all) {
    std::vector<testing::RandomInput> inputs;
    for (const Spec& spec : input_specs(shape, backward)) {
      inputs.push_back({.name = spec.name, .values = values.at(spec.name), .row = spec.columns});
    }
    std::vector<bench::InputChange> changes = testing::change_values(inputs, random, all);
    for (const bench::InputChange& change : changes) {
      if (!on_backend_) continue;
      const std::span<const float> whole = values.at(change.name);
      tensors[change.name].upload_stored(whole.subspan(change.first, change.count), change.first);
    }
    expected_.reset();
    return changes;
  }

  /// A sample of the outputs, at tokens that are chosen again when the inputs have changed; on the
  /// backend `sampled` belongs to them.
  [[nodiscard]] const Expected& expected() {
    if (!expected_) {
      tokens_ = sampled_tokens(shape);
      expected_ = expect();
      if (masks && on_backend_) sampled["dout_sampled"].upload(masked_dout());
    }
    return *expected_;
  }

  /// dout at the tokens of expected(), zero at the others.
  [[nodiscard]] std::vector<float> masked_dout() const {
    const std::vector<float>& dout = values.at("dout");
    std::vector<float> masked(dout.size(), 0.0F);
    for (const std::int64_t token : tokens_) {
      const auto first = static_cast<std::ptrdiff_t>(token * shape.hidden);
      std::copy_n(dout.begin() + first, shape.hidden, masked.begin() + first);
    }
    return masked;
  }

  Shape shape;
  Dtype dtype;
  Backend backend;
  int threads;
  bool backward;
  HostValues values{};
  Matrices tensors;
  bool masks = false;  ///< true: the check needs a dout that is zero at all other tokens
  Matrices sampled{};  ///< that dout

 private:
  [[nodiscard]] Expected expect() const {
    HostProblem p{.shape = shape,
                  .dtype = dtype,
                  .stream = values.at("stream"),
                  .delta = values.at("delta"),
                  .input_norm = values.at("input_norm"),
                  .qkv = values.at("qkv"),
                  .o = values.at("o"),
                  .post_norm = values.at("post_norm"),
                  .gate_up = values.at("gate_up"),
                  .down = values.at("down")};
    if (!backward) return expected_forward(p, tokens_);
    p.dout = values.at("dout");
    return expected_backward(p, tokens_);
  }

  bool on_backend_;
  std::vector<std::int64_t> tokens_{};
  std::optional<Expected> expected_{};
};

}  // namespace katt::llama_block
