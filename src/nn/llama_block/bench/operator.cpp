#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/adapter.hpp"
#include "bench/ceilings.hpp"
#include "nn/llama_block/llama_block.hpp"
#include "nn/llama_block/llama_block_ref.hpp"
#include "testing/compare.hpp"
#include "testing/fill.hpp"

namespace katt::llama_block {

namespace {

using bench::Point;

struct Spec {
  const char* name;
  std::int64_t rows, columns;
  float scale = 1.0F;  ///< standard deviation of generated values
  float mean = 0.0F;
};

/// Row sums of squares stay about one from tensor to tensor, as in a model.
float of_fan_in(std::int64_t columns) { return 1.0F / std::sqrt(static_cast<float>(columns)); }

std::vector<Spec> weight_specs(const Shape& s) {
  const std::int64_t halves = 2 * s.intermediate;
  return {{"input_norm", 1, s.hidden, 0.1F, 1.0F},
          {"qkv", s.qkv_size(), s.hidden, of_fan_in(s.hidden)},
          {"o", s.hidden, s.q_size(), of_fan_in(s.q_size())},
          {"post_norm", 1, s.hidden, 0.1F, 1.0F},
          {"gate_up", halves, s.hidden, of_fan_in(s.hidden)},
          {"down", s.hidden, s.intermediate, of_fan_in(s.intermediate)}};
}

std::vector<Spec> input_specs(const Shape& s, bool backward) {
  std::vector<Spec> specs = weight_specs(s);
  specs.push_back({"stream", s.tokens(), s.hidden});
  specs.push_back({"delta", s.tokens(), s.hidden});
  if (backward) specs.push_back({"dout", s.tokens(), s.hidden});
  return specs;
}

/// Outputs in the dtype of the block.
std::vector<Spec> output_specs(const Shape& s, bool backward) {
  if (backward) return {{"dx", s.tokens(), s.hidden}};
  return {{"h", s.tokens(), s.hidden}, {"delta_out", s.tokens(), s.hidden}};
}

std::size_t elements(const std::vector<Spec>& specs) {
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
           const std::string& prefix = "") {
    for (const Spec& spec : specs) {
      const std::string name = prefix + spec.name;
      tensors_.emplace(name, bench::Tensor<2>("katt::llama_block::" + name, backend, dtype,
                                              {spec.rows, spec.columns}));
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
  /// Adds every value that is expected of one of them, in an output of the dtype.
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
nn::BlockWeights weights_of(const Matrices& tensors, const std::string& prefix = "") {
  nn::BlockWeights weights;
  weights.input_norm = tensors.row(prefix + "input_norm");
  weights.qkv = tensors.matrix(prefix + "qkv");
  weights.o = tensors.matrix(prefix + "o");
  weights.post_norm = tensors.row(prefix + "post_norm");
  weights.gate_up = tensors.matrix(prefix + "gate_up");
  weights.down = tensors.matrix(prefix + "down");
  return weights;
}

/// The tensors of a pass without memory, for a rehearsal.
Tensors shapes_of(const Shape& s, Dtype dtype) {
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

Shape shape_of(const Point& point) {
  return {.batch = point.integer("batch"),
          .seq = point.integer("seq_q"),
          .hidden = point.integer("hidden"),
          .intermediate = point.integer("intermediate"),
          .heads = point.integer("heads"),
          .kv_heads = point.integer("kv_heads"),
          .head_dim = point.integer("head_dim")};
}

const nn::Kernels& kernels_of(const Config& config) {
  for (const Composition& composition : compositions()) {
    if (composition.name == config.variant) return composition.kernels;
  }
  throw InputError("llama_block: variant " + config.variant + ": unknown");
}

/// The inputs of a case, on the host and the backend.
struct Inputs {
  explicit Inputs(const Point& point)
      : shape(shape_of(point)),
        dtype(point.dtype),
        backend(point.backend),
        threads(point.threads),
        backward(point.pass == "backward"),
        tensors(backend, dtype, input_specs(shape, backward)) {
    std::uint64_t stream = point.seed * 16;
    for (const Spec& spec : input_specs(shape, backward)) {
      std::vector<float>& filled = values[spec.name];
      filled.resize(static_cast<std::size_t>(spec.rows * spec.columns));
      testing::fill(filled, ++stream, dtype, spec.scale);
      if (spec.mean != 0.0F) {
        for (float& value : filled) value = round_to(dtype, value + spec.mean);
      }
      tensors[spec.name].upload(filled);
    }
    tokens = sampled_tokens(shape);
    if (!backward || static_cast<std::int64_t>(tokens.size()) == shape.tokens()) return;
    const std::vector<Spec> alone{{"dout_sampled", shape.tokens(), shape.hidden}};
    sampled = Matrices(backend, dtype, alone);
    std::vector<float> masked(values["dout"].size(), 0.0F);
    for (const std::int64_t token : tokens) {
      const auto first = static_cast<std::ptrdiff_t>(token * shape.hidden);
      std::copy_n(values["dout"].begin() + first, shape.hidden, masked.begin() + first);
    }
    sampled["dout_sampled"].upload(masked);
    masks = true;
  }

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
    if (!backward) return expected_forward(p, tokens);
    p.dout = values.at("dout");
    return expected_backward(p, tokens);
  }

  Shape shape;
  Dtype dtype;
  Backend backend;
  int threads;
  bool backward;
  HostValues values{};
  Matrices tensors;
  std::vector<std::int64_t> tokens{};  ///< whose rows are checked
  bool masks = false;  ///< whether the check needs a dout that is zero at all other tokens
  Matrices sampled{};  ///< that one
};

template <class Exec>
class BlockCandidate final : public bench::Candidate {
 public:
  BlockCandidate(Exec exec, const Inputs& in, const nn::Kernels& kernels, const Expected& expected)
      : exec_(std::move(exec)),
        in_(in),
        expected_(expected),
        outputs_(in.backend, in.dtype, output_specs(in.shape, in.backward)),
        gradients_(in.backward ? Matrices(in.backend, Dtype::f32, weight_specs(in.shape), "d")
                               : Matrices()),
        pass_(exec_, in.shape, in.dtype, kernels, tensors(), in.backward) {
    exec_.fence("katt::llama_block::prepare");
  }

  void run() override { in_.backward ? pass_.backward() : pass_.forward(); }
  bool restore() override {
    if (in_.backward) pass_.restore(in_.tensors.matrix("dout"));
    return in_.backward;
  }
  void fence() override { exec_.fence("katt::llama_block::candidate"); }
  void poison() override {
    outputs_.poison();
    gradients_.poison();
  }
  bench::Errors verify() override {
    if (in_.masks) {
      pass_.restore(in_.sampled.matrix("dout_sampled"));
      pass_.backward();
      fence();
    }
    testing::Comparison comparison;
    outputs_.compare(comparison, expected_, in_.dtype);
    gradients_.compare(comparison, expected_, in_.dtype);
    return comparison.result();
  }
  [[nodiscard]] std::string engine() const override { return pass_.engine(in_.backward); }

 private:
  [[nodiscard]] Tensors tensors() const {
    Tensors all;
    all.stream = in_.tensors.matrix("stream");
    all.delta = in_.tensors.matrix("delta");
    all.weights = weights_of(in_.tensors);
    if (in_.backward) {
      all.dx = outputs_.matrix("dx");
      all.gradients = weights_of(gradients_, "d");
    } else {
      all.h = outputs_.matrix("h");
      all.delta_out = outputs_.matrix("delta_out");
    }
    return all;
  }

  Exec exec_;
  const Inputs& in_;
  const Expected& expected_;
  Matrices outputs_, gradients_;
  Pass<Exec> pass_;
};

class BlockCase final : public bench::Case {
 public:
  explicit BlockCase(const Point& point) : in_(point) {}

  [[nodiscard]] bench::Work work() const override {
    return {flops(in_.shape, in_.backward), bytes(in_.shape, in_.dtype, in_.backward),
            bench::matrix_ceiling(in_.backend, in_.dtype)};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    if (!config.setting.empty()) return Status::skipped("llama_block takes no tile");
    try {
      visit_backend(in_.backend, in_.threads, [&]<class Exec>(const Exec& exec) {
        const Pass<Exec> rehearsal(exec, in_.shape, in_.dtype, kernels_of(config),
                                   shapes_of(in_.shape, in_.dtype), in_.backward, true);
      });
    } catch (const InputError& error) {
      return Status::skipped(error.what());
    }
    return Status::ok();
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    if (expected_.empty()) expected_ = in_.expect();
    return visit_backend(in_.backend, in_.threads,
                         [&]<class Exec>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
                           return std::make_unique<BlockCandidate<Exec>>(
                               exec, in_, kernels_of(config), expected_);
                         });
  }

 private:
  Inputs in_;
  Expected expected_;
};

class BlockOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "llama_block"; }
  [[nodiscard]] std::string summary() const override {
    return "a whole LLaMA block, composed of naive or of fused operators";
  }

  [[nodiscard]] std::vector<bench::AxisSpec> axes() const override {
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

  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend /*backend*/,
                                                         std::string_view) const override {
    std::vector<bench::VariantInfo> infos;
    for (const Composition& one : compositions()) {
      infos.push_back({one.name, one.description, infos.empty()});
    }
    return infos;
  }

  void validate(const Point& point) const override {
    const Shape s = shape_of(point);
    if (s.heads % s.kv_heads != 0) {
      throw InputError("kv_heads " + std::to_string(s.kv_heads) +
                       ": expected a divisor of heads, " + std::to_string(s.heads));
    }
    if (s.head_dim % 8 != 0) {
      throw InputError("head_dim " + std::to_string(s.head_dim) + ": expected a multiple of 8");
    }
  }

  [[nodiscard]] Config resolve(const Point& /*point*/, const Config& config) const override {
    return config.variant == auto_variant ? Config{.variant = "fused"} : config;
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const Shape s = shape_of(point);
    const bool backward = point.pass == "backward";
    const std::size_t element = size_of(point.dtype);
    const std::size_t dout =
        backward ? element * static_cast<std::size_t>(s.tokens() * s.hidden) : 0;
    bench::Footprint bytes;
    bytes.tensors = elements(input_specs(s, backward)) * (element + sizeof(float)) + dout;
    bytes.outputs = elements(output_specs(s, backward)) * element +
                    (backward ? elements(weight_specs(s)) * sizeof(float) : 0);
    bytes.workspace =
        visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
          try {
            const Pass<Exec> rehearsal(exec, s, point.dtype, kernels_of(config),
                                       shapes_of(s, point.dtype), backward, true);
            return rehearsal.bytes();
          } catch (const InputError&) {
            return std::size_t{0};  // supports() says why
          }
        });
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<BlockCase>(point);
  }

  void run_file(const io::CaseFile& /*in*/, const bench::RunOptions& /*options*/,
                io::TensorFile& /*out*/) const override {
    throw InputError(
        "llama_block: is made for sweeps, expected one of the operators that it is composed of, or "
        "katt logits for a model");
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<BlockOperator>()); }

}  // namespace katt::llama_block
