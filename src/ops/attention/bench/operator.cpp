#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "bench/candidate.hpp"
#include "bench/ceilings.hpp"
#include "bench/registry.hpp"
#include "core/error.hpp"
#include "ops/attention/bench/case.hpp"
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

/// A case of the forward pass.
class ForwardCase final : public bench::Case {
 public:
  explicit ForwardCase(const Point& point)
      : data_(generate(point)),
        device_(*data_, point.backend, layout_of(point)),
        backend_(point.backend),
        threads_(point.threads),
        layout_(layout_of(point)) {}

  [[nodiscard]] bench::Work work() const override {
    const ForwardArgs args = host_masks(*data_, device_.args());
    const HostProblem& p = data_->shape;
    const double lse_bytes = 4.0 * static_cast<double>(p.batch * p.heads * p.seq_q);
    return {forward_flops(args), forward_bytes(args) + lse_bytes,
            bench::matrix_ceiling(backend_, data_->dtype)};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      return forward_variants<Exec>().supports(exec, device_.args(), config);
    });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    if (!reference_) reference_.emplace(*data_);
    return visit_backend(
        backend_, threads_, [&]<class Exec>(Exec exec) -> std::unique_ptr<bench::Candidate> {
          DeviceOutput output(data_->shape, data_->dtype, backend_, layout_);
          ForwardArgs args = device_.args();
          args.out = output.out.ref();
          args.lse = output.lse.ref();
          check(args);
          return std::make_unique<bench::VariantCandidate<Exec, ForwardArgs, DeviceOutput>>(
              "katt::attention::workspace", std::move(exec), forward_variants<Exec>(), args, config,
              std::move(output), [this](const DeviceOutput& made) {
                return reference_->compare(made.out.download(), made.lse.download());
              });
        });
  }

  /// Of another program only `out` is asked: few give lse.
  std::optional<bench::ForeignCase> foreign() override {
    if (!data_->block_mask.empty()) return std::nullopt;
    if (!reference_) reference_.emplace(*data_);
    const HostProblem& p = data_->shape;
    return bench::ForeignCase{
        .inputs = foreign_inputs(*data_),
        .outputs = {{"out", {p.batch, p.heads, p.seq_q, p.head_dim}, data_->dtype}},
        .parameters = {{"scale", p.scale}},
        .verify = [this](std::span<const std::vector<float>> outputs) {
          return reference_->compare(outputs[0], {});
        }};
  }

 private:
  std::unique_ptr<ProblemData> data_;
  DeviceProblem device_;
  std::optional<Reference> reference_;
  Backend backend_;
  int threads_;
  HeadLayout layout_;
};

/// A case of the backward pass. Its inputs out and lse come from the fastest forward pass.
class BackwardCase final : public bench::Case {
 public:
  explicit BackwardCase(const Point& point)
      : data_(generate(point)),
        device_(*data_, point.backend, layout_of(point)),
        forward_(data_->shape, data_->dtype, point.backend, layout_of(point)),
        dout_("katt::attention::dout", point.backend, data_->dtype, forward_.out.ref().extent,
              layout_of(point)),
        backend_(point.backend),
        threads_(point.threads),
        layout_(layout_of(point)) {
    dout_.upload(data_->dout);
    run_forward(device_, forward_, {}, backend_, threads_);
  }

  [[nodiscard]] bench::Work work() const override {
    BackwardArgs args;
    const ForwardArgs masked = host_masks(*data_, device_.args());
    args.q = masked.q;
    args.k = masked.k;
    args.mask = masked.mask;
    return {backward_flops(args), backward_bytes(args),
            bench::matrix_ceiling(backend_, data_->dtype)};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      BackwardArgs args;
      args.q = device_.args().q;
      args.k = device_.args().k;
      return backward_variants<Exec>().supports(exec, args, config);
    });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    if (!reference_) reference_.emplace(*data_);
    return visit_backend(
        backend_, threads_, [&]<class Exec>(Exec exec) -> std::unique_ptr<bench::Candidate> {
          DeviceGradients gradients(data_->shape, data_->dtype, backend_, layout_);
          const BackwardArgs args = backward_args(device_.args(), forward_, dout_, gradients);
          check(args);
          return std::make_unique<bench::VariantCandidate<Exec, BackwardArgs, DeviceGradients>>(
              "katt::attention::workspace", std::move(exec), backward_variants<Exec>(), args,
              config, std::move(gradients), [this](const DeviceGradients& made) {
                return reference_->compare(made.dq.download(), made.dk.download(),
                                           made.dv.download());
              });
        });
  }

  std::optional<bench::ForeignCase> foreign() override {
    if (!data_->block_mask.empty()) return std::nullopt;
    if (!reference_) reference_.emplace(*data_);
    const HostProblem& p = data_->shape;
    const std::vector<std::int64_t> q{p.batch, p.heads, p.seq_q, p.head_dim};
    const std::vector<std::int64_t> kv{p.batch, p.kv_heads, p.seq_kv, p.head_dim};
    auto inputs = foreign_inputs(*data_);
    inputs.push_back({"dout", q, data_->dtype, data_->dout});
    return bench::ForeignCase{
        .inputs = std::move(inputs),
        .outputs = {{"dq", q, data_->dtype}, {"dk", kv, data_->dtype}, {"dv", kv, data_->dtype}},
        .parameters = {{"scale", p.scale}},
        .verify = [this](std::span<const std::vector<float>> outputs) {
          return reference_->compare(outputs[0], outputs[1], outputs[2]);
        }};
  }

 private:
  std::unique_ptr<ProblemData> data_;
  DeviceProblem device_;
  DeviceOutput forward_;
  bench::Tensor<4> dout_;
  std::optional<GradientReference> reference_;
  Backend backend_;
  int threads_;
  HeadLayout layout_;
};

/// Calls f(exec, table, args) with the variants of a point's pass and arguments without tensors.
template <class F>
auto visit(const Point& point, const F& f) {
  return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
    const ForwardArgs args = shape_args(problem_of(point), point.dtype);
    if (point.pass != "backward") return f(exec, forward_variants<Exec>(), args);
    BackwardArgs gradients;
    gradients.q = args.q;
    gradients.k = args.k;
    return f(exec, backward_variants<Exec>(), gradients);
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
      AxisSpec axis;
      axis.name = name;
      axis.fallback = fallback;
      axis.minimum = minimum;
      axis.maximum = maximum;
      axis.help = help;
      return axis;
    };
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
        integer("alibi", 0, 0, 1, "1: ALiBi, with the slopes of its paper for so many heads"),
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
    };
    for (const ScoreParameter& parameter : score_parameters) {
      axes.push_back({.name = parameter.name,
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
    if (point.pass == "backward") return std::make_unique<BackwardCase>(point);
    return std::make_unique<ForwardCase>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    run_case_file(in, options, out);
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<AttentionOperator>()); }

}  // namespace katt::attention
