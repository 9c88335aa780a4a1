#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/execution.hpp"
#include "nn/llama_block/llama_block_ref.hpp"
#include "nn/llama_block/schema.hpp"
#include "op/reference/compare.hpp"
#include "op/reference/new_values.hpp"
#include "op/tensors.hpp"

/// The inputs and outputs of a block's adapters.
namespace katt::llama_block {

using bench::DeviceTensors;
using bench::Point;
using bench::Problem;
using bench::TensorSpec;

inline const bench::TensorSpecs& input_specs() {
  static const bench::TensorSpecs specs = bench::specs<schema, Tensors>(false);
  return specs;
}
inline const bench::TensorSpecs& output_specs() {
  static const bench::TensorSpecs specs = bench::specs<schema, Tensors>(true);
  return specs;
}

/// True for a tensor with a row a token, and not of the weights.
inline bool has_tokens(const TensorSpec& spec) { return spec.axes.front() == "tokens"; }

inline Shape shape_of(const Point& point) {
  return {.batch = point.integer("batch"),
          .seq = point.integer("seq_q"),
          .hidden = point.integer("hidden"),
          .intermediate = point.integer("intermediate"),
          .heads = point.integer("heads"),
          .kv_heads = point.integer("kv_heads"),
          .head_dim = point.integer("head_dim")};
}

/// The extents of the schema's axes.
inline Problem problem_of(const Shape& s, Dtype dtype, bool backward) {
  Problem problem;
  problem.dtype = dtype;
  problem.backward = backward;
  const bool is_sampled = backward && std::ssize(sampled_tokens(s)) < s.tokens();
  problem.extents = {{"tokens", s.tokens()},
                     {"hidden", s.hidden},
                     {"qkv_size", s.qkv_size()},
                     {"q_size", s.q_size()},
                     {"gate_up_size", 2 * s.intermediate},
                     {"intermediate", s.intermediate},
                     {"backward", backward ? 1 : 0},
                     {"sampled", is_sampled ? 1 : 0}};
  return problem;
}

/// The tensors of a pass.
inline Tensors tensors_of(const Problem& problem, const DeviceTensors& inputs,
                          const DeviceTensors& outputs) {
  bench::Tensors tensors(problem);
  inputs.add_to(tensors);
  outputs.add_to(tensors);
  return bench::arguments<schema, Tensors>(tensors);
}

/// The tensors of a pass without memory, for a rehearsal.
inline Tensors shapes_of(const Problem& problem) {
  bench::Tensors tensors(problem);
  bench::add_shapes(tensors, input_specs(), problem);
  bench::add_shapes(tensors, output_specs(), problem);
  return bench::arguments<schema, Tensors>(tensors);
}

/// Bytes of a pass; 0 when it cannot run here (the pass itself reports that).
inline std::size_t pass_bytes(const Point& point, const Shape& s, const Problem& problem,
                              const nn::Kernels& kernels, const ranks::Groups& groups = {}) {
  return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
    try {
      const Pass<Exec> rehearsal(exec, s, point.dtype, kernels, shapes_of(problem),
                                 problem.backward, true, groups);
      return rehearsal.bytes();
    } catch (const InputError&) {
      return std::size_t{0};
    }
  });
}

inline std::vector<bench::AxisSpec> block_axes() {
  using bench::integer_axis;
  return {integer_axis("batch", 1, 1, "sequences"),
          integer_axis("seq_q", 512, 1, "tokens per sequence").also("seq"),
          integer_axis("hidden", 576, 1, "width of the residual stream"),
          integer_axis("intermediate", 1536, 1, "width of the feed-forward layer"),
          integer_axis("heads", 9, 1, "query heads"),
          integer_axis("kv_heads", 9, 1, "key/value heads, a divisor of heads").following("heads"),
          integer_axis("head_dim", 64, 8, "elements per head, a multiple of 8", 256)};
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
        problem(problem_of(shape, dtype, backward)),
        masks(problem.extent("sampled") != 0),
        on_backend_(on_backend) {
    bench::generate(problem, input_specs(), point.seed);
    if (!on_backend) return;
    tensors = DeviceTensors("llama_block", backend, input_specs(), problem);
    tensors.upload(problem);
  }

  /// An input on the backend.
  [[nodiscard]] TensorRef<2> matrix(std::string_view name) const {
    bench::Tensors all(problem);
    tensors.add_to(all);
    return all.matrix(name);
  }

  /// Case::change(), on the backend, too.
  [[nodiscard]] std::vector<bench::InputChange> change(std::uint64_t random, bool all) {
    std::vector<testing::RandomInput> inputs;
    for (const TensorSpec& spec : input_specs()) {
      if (!problem.has(spec.name)) continue;
      inputs.push_back({.name = spec.name,
                        .values = problem.values[spec.name],
                        .row = spec.shape(problem).back()});
    }
    std::vector<bench::InputChange> changes = testing::change_values(inputs, random, all);
    for (const bench::InputChange& change : changes) {
      if (!on_backend_) continue;
      const std::span<const float> whole = problem.floats(change.name);
      tensors.upload_stored(change.name, whole.subspan(change.first, change.count), change.first);
    }
    expected_.reset();
    return changes;
  }

  /// A sample of the outputs, at tokens that are chosen again when the inputs have changed; on the
  /// backend dout_sampled belongs to them.
  [[nodiscard]] const Expected& expected() {
    if (!expected_) {
      tokens_ = sampled_tokens(shape);
      expected_ = expect();
      if (masks && on_backend_) tensors.upload("dout_sampled", masked_dout());
    }
    return *expected_;
  }

  /// dout at the tokens of expected(), zero at the others.
  [[nodiscard]] std::vector<float> masked_dout() const {
    const std::span<const float> dout = problem.floats("dout");
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
  Problem problem;
  bool masks;  ///< true: the check needs dout_sampled
  DeviceTensors tensors{};

 private:
  [[nodiscard]] Expected expect() const {
    const HostProblem p{.shape = shape,
                        .dtype = dtype,
                        .stream = problem.floats("stream"),
                        .delta = problem.floats("delta"),
                        .input_norm = problem.floats("input_norm"),
                        .qkv = problem.floats("qkv"),
                        .o = problem.floats("o"),
                        .post_norm = problem.floats("post_norm"),
                        .gate_up = problem.floats("gate_up"),
                        .down = problem.floats("down"),
                        .dout = problem.floats("dout")};
    return backward ? expected_backward(p, tokens_) : expected_forward(p, tokens_);
  }

  bool on_backend_;
  std::vector<std::int64_t> tokens_{};
  std::optional<Expected> expected_{};
};

}  // namespace katt::llama_block
