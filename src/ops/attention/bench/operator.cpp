#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/adapter.hpp"
#include "bench/candidate.hpp"
#include "bench/ceilings.hpp"
#include "bench/registry.hpp"
#include "core/error.hpp"
#include "ops/attention/bench/case.hpp"
#include "ops/attention/score_rules.hpp"
#include "testing/fill.hpp"

namespace katt::attention {

namespace {

using bench::AxisSpec;
using bench::HeadLayout;
using bench::Point;

constexpr double largest_extent = 1LL << 31;

HeadLayout layout_of(const Point& point) {
  return point.choice("layout") == "bshd" ? HeadLayout::bshd : HeadLayout::bhsd;
}

const NamedRule* rule_of(const Point& point) { return find_rule(point.choice("score_rule")); }

/// The shape and mask parameters of a point, without values.
HostProblem problem_of(const Point& point) {
  HostProblem p;
  p.batch = point.integer("batch");
  p.heads = point.integer("heads");
  p.kv_heads = point.integer("kv_heads");
  p.seq_q = point.integer("seq_q");
  p.seq_kv = point.integer("seq_kv");
  p.head_dim = point.integer("head_dim");
  p.scale = 1.0 / std::sqrt(static_cast<double>(p.head_dim));
  p.causal = point.integer("causal") != 0;
  p.window_left = point.integer("window_left");
  p.window_right = point.integer("window_right");
  for (const ScoreParameter& parameter : score_parameters) {
    p.score.*parameter.value = static_cast<float>(point.real(parameter.name));
  }
  p.block_size = point.real("block_density") < 1.0 ? point.integer("block_size") : 0;
  return p;
}

/// Seeded inputs of a point.
std::unique_ptr<ProblemData> generate(const Point& point) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  p = problem_of(point);
  data->dtype = point.dtype;
  const auto values = [&](std::int64_t count, std::uint64_t stream) {
    std::vector<float> filled(static_cast<std::size_t>(count));
    testing::fill(filled, point.seed * 16 + stream, point.dtype);
    return filled;
  };
  data->q = values(p.batch * p.heads * p.seq_q * p.head_dim, 1);
  data->k = values(p.batch * p.kv_heads * p.seq_kv * p.head_dim, 2);
  data->v = values(p.batch * p.kv_heads * p.seq_kv * p.head_dim, 3);
  if (point.pass == "backward") {
    data->dout = values(p.batch * p.heads * p.seq_q * p.head_dim, 7);
  }
  if (const NamedRule* rule = rule_of(point)) p.rule = rule->exact(p.heads);
  if (point.integer("alibi") != 0) data->alibi_slopes = alibi_slopes(p.heads);
  if (point.integer("bias") != 0) data->bias = values(p.seq_q * p.seq_kv, 4);
  if (const std::int64_t least = point.integer("kv_len_min"); least >= 0) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const double u = testing::uniform(point.seed * 16 + 5, static_cast<std::uint64_t>(b));
      data->kv_len.push_back(
          least + static_cast<std::int64_t>(u * static_cast<double>(p.seq_kv - least + 1)));
    }
  }
  if (p.block_size > 0) {
    const std::int64_t rows = (p.seq_q + p.block_size - 1) / p.block_size;
    const std::int64_t columns = (p.seq_kv + p.block_size - 1) / p.block_size;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const double u = testing::uniform(point.seed * 16 + 6, static_cast<std::uint64_t>(i));
      data->block_mask.push_back(u < point.real("block_density") ? 1 : 0);
    }
  }
  data->link();
  return data;
}

/// What both passes read, for another program. An empty tensor is not there.
std::vector<bench::ForeignTensor> foreign_inputs(const ProblemData& data) {
  const HostProblem& p = data.shape;
  std::vector<bench::ForeignTensor> tensors{
      {"q", {p.batch, p.heads, p.seq_q, p.head_dim}, data.dtype, data.q},
      {"k", {p.batch, p.kv_heads, p.seq_kv, p.head_dim}, data.dtype, data.k},
      {"v", {p.batch, p.kv_heads, p.seq_kv, p.head_dim}, data.dtype, data.v}};
  if (!data.bias.empty()) {
    tensors.push_back({"bias", {1, 1, p.seq_q, p.seq_kv}, data.dtype, data.bias});
  }
  if (!data.alibi_slopes.empty()) {
    tensors.push_back({"alibi_slopes", {p.heads}, Dtype::f32, data.alibi_slopes});
  }
  if (!data.kv_len.empty()) tensors.push_back({"kv_len", {p.batch}, Dtype::f32, {}, data.kv_len});
  return tensors;
}

/// The inputs of a point and where they lie.
struct Inputs {
  std::unique_ptr<ProblemData> data;
  DeviceProblem device;
  Backend backend;
  int threads;
  HeadLayout layout;
  const NamedRule* rule;

  explicit Inputs(const Point& point)
      : data(generate(point)),
        device(*data, point.backend, layout_of(point)),
        backend(point.backend),
        threads(point.threads),
        layout(layout_of(point)),
        rule(rule_of(point)) {}

  template <class Exec, class Args>
  [[nodiscard]] VariantTable<Exec, Args> variants() const {
    return variants_of<Exec, Args>(rule, data->shape.heads);
  }
};

struct ForwardPass {
  using Args = ForwardArgs;
  using Outputs = DeviceOutput;
  using Expected = Reference;

  explicit ForwardPass(const Inputs& /*inputs*/) {}

  static ForwardArgs args(const ForwardArgs& inputs) { return inputs; }
  static ForwardArgs args(const ForwardArgs& inputs, const DeviceOutput& outputs) {
    return forward_args(inputs, outputs);
  }
  static std::pair<double, double> work(const ForwardArgs& args) {
    const auto rows = static_cast<double>(args.batch() * args.heads() * args.seq_q());
    return {forward_flops(args), forward_bytes(args) + 4.0 * rows};
  }
  static bench::Errors compare(const Reference& expected, const DeviceOutput& made) {
    return expected.compare(made.out.download(), made.lse.download());
  }
  /// Of another program only `out` is asked: few give lse.
  static std::vector<const char*> foreign_outputs() { return {"out"}; }
  static bench::Errors compare(const Reference& expected,
                               std::span<const std::vector<float>> outputs) {
    return expected.compare(outputs[0], {});
  }
};

/// Its inputs out and lse come from the fastest forward pass.
struct BackwardPass {
  using Args = BackwardArgs;
  using Outputs = DeviceGradients;
  using Expected = GradientReference;

  explicit BackwardPass(const Inputs& in)
      : forward(in.data->shape, in.data->dtype, in.backend, in.layout),
        dout("katt::attention::dout", in.backend, in.data->dtype, forward.out.ref().extent,
             in.layout) {
    dout.upload(in.data->dout);
    visit_backend(in.backend, in.threads, [&]<class Exec>(const Exec& exec) {
      bench::run_variant("attention", exec, in.variants<Exec, ForwardArgs>(),
                         forward_args(in.device.args(), forward), {});
    });
  }

  static BackwardArgs args(const ForwardArgs& inputs) {
    BackwardArgs args;
    args.q = inputs.q;
    args.k = inputs.k;
    args.mask = inputs.mask;
    return args;
  }
  [[nodiscard]] BackwardArgs args(const ForwardArgs& inputs, const DeviceGradients& outputs) const {
    return backward_args(inputs, forward, dout, outputs);
  }
  static std::pair<double, double> work(const BackwardArgs& args) {
    return {backward_flops(args), backward_bytes(args)};
  }
  static bench::Errors compare(const GradientReference& expected, const DeviceGradients& made) {
    return expected.compare(made.dq.download(), made.dk.download(), made.dv.download());
  }
  static std::vector<const char*> foreign_outputs() { return {"dq", "dk", "dv"}; }
  static bench::Errors compare(const GradientReference& expected,
                               std::span<const std::vector<float>> outputs) {
    return expected.compare(outputs[0], outputs[1], outputs[2]);
  }

  DeviceOutput forward;
  bench::Tensor<4> dout;
};

template <class Pass>
class PassCase final : public bench::Case {
  using Args = typename Pass::Args;
  using Outputs = typename Pass::Outputs;

 public:
  explicit PassCase(const Point& point) : in_(point), pass_(in_) {}

  [[nodiscard]] bench::Work work() const override {
    const auto [flops, bytes] = Pass::work(Pass::args(host_masks(*in_.data, in_.device.args())));
    return {flops, bytes, bench::matrix_ceiling(in_.backend, in_.data->dtype)};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit_backend(in_.backend, in_.threads, [&]<class Exec>(const Exec& exec) {
      return in_.variants<Exec, Args>().supports(exec, Pass::args(in_.device.args()), config);
    });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    expect();
    return visit_backend(
        in_.backend, in_.threads, [&]<class Exec>(Exec exec) -> std::unique_ptr<bench::Candidate> {
          const auto table = std::make_shared<VariantTable<Exec, Args>>(in_.variants<Exec, Args>());
          tables_.push_back(table);
          Outputs outputs(in_.data->shape, in_.data->dtype, in_.backend, in_.layout);
          const Args args = pass_.args(in_.device.args(), outputs);
          check(args);
          return std::make_unique<bench::VariantCandidate<Exec, Args, Outputs>>(
              "katt::attention::workspace", std::move(exec), *table, args, config,
              std::move(outputs),
              [this](const Outputs& made) { return Pass::compare(*expected_, made); });
        });
  }

  std::optional<bench::ForeignCase> foreign() override {
    const ProblemData& data = *in_.data;
    const HostProblem& p = data.shape;
    if (!data.block_mask.empty() || p.rule) return std::nullopt;
    expect();
    const std::vector<std::int64_t> q{p.batch, p.heads, p.seq_q, p.head_dim};
    const std::vector<std::int64_t> kv{p.batch, p.kv_heads, p.seq_kv, p.head_dim};
    auto inputs = foreign_inputs(data);
    if (!data.dout.empty()) inputs.push_back({"dout", q, data.dtype, data.dout});
    std::vector<bench::ForeignTensor> outputs;
    for (const char* name : Pass::foreign_outputs()) {
      const bool of_keys = name == std::string_view("dk") || name == std::string_view("dv");
      outputs.push_back({name, of_keys ? kv : q, data.dtype});
    }
    return bench::ForeignCase{.inputs = std::move(inputs),
                              .outputs = std::move(outputs),
                              .parameters = {{"scale", p.scale}},
                              .verify = [this](std::span<const std::vector<float>> made) {
                                return Pass::compare(*expected_, made);
                              }};
  }

 private:
  void expect() {
    if (!expected_) expected_.emplace(*in_.data);
  }

  Inputs in_;
  Pass pass_;
  std::optional<typename Pass::Expected> expected_;
  std::vector<std::shared_ptr<void>> tables_;  ///< of the candidates
};

/// Calls f(exec, table, args) with the variants of a point's pass and arguments without tensors.
template <class F>
auto visit(const Point& point, const F& f) {
  return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
    const ForwardArgs args = shape_args(problem_of(point), point.dtype);
    const auto of_pass = [&]<class Pass>() {
      const auto table = variants_of<Exec, typename Pass::Args>(rule_of(point), args.heads());
      return f(exec, table, Pass::args(args));
    };
    if (point.pass == "backward") return of_pass.template operator()<BackwardPass>();
    return of_pass.template operator()<ForwardPass>();
  });
}

class AttentionOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "attention"; }
  [[nodiscard]] std::string summary() const override {
    return "softmax(scale · Q·Kᵀ + mask) · V over heads";
  }

  [[nodiscard]] std::vector<AxisSpec> axes() const override {
    const auto integer = [](const char* name, std::int64_t fallback, double minimum, double maximum,
                            const char* help) {
      return bench::integer_axis(name, fallback, minimum, help, maximum);
    };
    std::vector<std::string> rules{"none"};
    for (const NamedRule& rule : named_rules()) rules.push_back(rule.name);
    std::vector<AxisSpec> axes{
        integer("batch", 1, 1, largest_extent, "sequences"),
        integer("heads", 8, 1, largest_extent, "query heads"),
        integer("kv_heads", 8, 1, largest_extent, "key/value heads; a divisor of heads"),
        integer("seq_q", 1024, 1, largest_extent, "queries per sequence"),
        integer("seq_kv", 1024, 1, largest_extent, "keys per sequence"),
        integer("head_dim", 64, 8, static_cast<double>(max_head_dim),
                "elements per head, a multiple of 8"),
        integer("causal", 0, 0, 1, "1: key j is visible to query i if j <= i + seq_kv - seq_q"),
        integer("window_left", -1, -1, largest_extent, "keys visible to the left; -1: all"),
        integer("window_right", -1, -1, largest_extent, "keys visible to the right; -1: all"),
        integer("bias", 0, 0, 1, "1: an additive mask (1, 1, seq_q, seq_kv)"),
        integer("kv_len_min", -1, -1, largest_extent, "least of random key lengths; -1: all keys"),
        integer("block_size", 64, 1, largest_extent, "edge of a block of the block mask"),
        {.name = "block_density",
         .fallback = 1.0,
         .minimum = 0,
         .maximum = 1,
         .help = "share of live blocks; 1: no block mask"},
        {.name = "layout",
         .fallback = std::string("bhsd"),
         .choices = {"bhsd", "bshd"},
         .help = "storage order of q, k, v, out"},
        integer("alibi", 0, 0, 1, "1: ALiBi, with the slopes of its paper for so many heads"),
        {.name = "score_rule",
         .fallback = std::string("none"),
         .choices = rules,
         .help = "a rule of the user's own for the scores"},
    };
    auto place = std::ranges::find(axes, "bias", &AxisSpec::name);
    for (const ScoreParameter& parameter : score_parameters) {
      place = 1 + axes.insert(place, {.name = parameter.name,
                                      .fallback = 0.0,
                                      .minimum = parameter.minimum,
                                      .maximum = parameter.maximum,
                                      .help = parameter.help});
    }
    const auto amend = [&](const char* name, const char* follows, const char* short_name) {
      for (AxisSpec& axis : axes) {
        if (axis.name != name) continue;
        axis.follows = follows;
        axis.short_name = short_name;
      }
    };
    amend("kv_heads", "heads", "");
    amend("seq_q", "", "seq");
    amend("seq_kv", "seq_q", "");
    amend("window_left", "", "window");
    return axes;
  }

  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend backend,
                                                         std::string_view pass) const override {
    return visit_backend(backend, 0, [pass]<class Exec>(const Exec&) {
      return pass == "backward" ? bench::describe(backward_variants<Exec>())
                                : bench::describe(forward_variants<Exec>());
    });
  }

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    return visit(point, [&](const auto& exec, const auto& table, const auto& args) {
      return table.resolve(exec, args, config);
    });
  }

  [[nodiscard]] std::optional<bench::PresetTile> preset(const Point& point,
                                                        std::string_view variant,
                                                        std::string_view name) const override {
    return visit(point, [&](const auto& exec, const auto& table, const auto& args) {
      return bench::find_preset(table, exec, args, variant, name);
    });
  }

  void validate(const Point& point) const override {
    const std::int64_t d = point.integer("head_dim");
    if (d % 8 != 0) {
      throw InputError("head_dim " + std::to_string(d) + ": expected a multiple of 8 up to " +
                       std::to_string(max_head_dim));
    }
    if (point.integer("heads") % point.integer("kv_heads") != 0) {
      throw InputError("kv_heads " + std::to_string(point.integer("kv_heads")) +
                       ": does not divide heads " + std::to_string(point.integer("heads")));
    }
    if (point.integer("kv_len_min") > point.integer("seq_kv")) {
      throw InputError("kv_len_min " + std::to_string(point.integer("kv_len_min")) +
                       ": expected at most seq_kv " + std::to_string(point.integer("seq_kv")));
    }
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const HostProblem p = problem_of(point);
    const double element = static_cast<double>(size_of(point.dtype));
    const double q = static_cast<double>(p.batch) * static_cast<double>(p.heads) *
                     static_cast<double>(p.seq_q) * static_cast<double>(p.head_dim);
    const double kv = static_cast<double>(p.batch) * static_cast<double>(p.kv_heads) *
                      static_cast<double>(p.seq_kv) * static_cast<double>(p.head_dim);
    const double bias = point.integer("bias") != 0
                            ? static_cast<double>(p.seq_q) * static_cast<double>(p.seq_kv)
                            : 0;
    const double blocks =
        p.block_size > 0
            ? std::ceil(static_cast<double>(p.seq_q) / static_cast<double>(p.block_size)) *
                  std::ceil(static_cast<double>(p.seq_kv) / static_cast<double>(p.block_size))
            : 0;
    const bool backward = point.pass == "backward";
    const double rows = q / static_cast<double>(p.head_dim);
    const double inputs = q + 2 * kv + bias + (backward ? 2 * q : 0);
    const auto whole = [](double count) {
      return static_cast<std::size_t>(std::min(count, 0x1p62));
    };
    bench::Footprint bytes;
    // The generated values stay on the host beside the tensors, for the reference.
    bytes.tensors = whole((element + 4.0) * inputs + 2 * blocks + (backward ? 4.0 * rows : 0));
    bytes.outputs = whole(backward ? element * (q + 2 * kv) : element * q + 4.0 * rows);
    bytes.workspace = visit(point, [&](const auto& exec, const auto& table, const auto& args) {
      return table.workspace_bytes(exec, args, config);
    });
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    if (point.pass == "backward") return std::make_unique<PassCase<BackwardPass>>(point);
    return std::make_unique<PassCase<ForwardPass>>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    run_case_file(in, options, out);
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<AttentionOperator>()); }

}  // namespace katt::attention
