#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "bench/adapter.hpp"
#include "bench/candidate.hpp"
#include "bench/machine.hpp"
#include "bench/registry.hpp"
#include "bench/text.hpp"
#include "core/error.hpp"
#include "io/case_file.hpp"
#include "ops/rmsnorm/bench/case.hpp"
#include "testing/fill.hpp"

namespace katt::rmsnorm {

namespace {

using bench::AxisSpec;
using bench::Point;

template <class Exec, class Args>
const VariantTable<Exec, Args>& variants_of() {
  if constexpr (std::is_same_v<Args, ForwardArgs>) {
    return forward_variants<Exec>();
  } else {
    return backward_variants<Exec>();
  }
}

/// Calls f.operator()<Exec, Args>(exec) for a backend and a pass.
template <class F>
decltype(auto) visit(Backend backend, int threads, std::string_view pass, const F& f) {
  return visit_backend(backend, threads, [&]<class Exec>(const Exec& exec) {
    return pass == "backward" ? f.template operator()<Exec, BackwardArgs>(exec)
                              : f.template operator()<Exec, ForwardArgs>(exec);
  });
}

Options options_of(const Point& point) {
  return {point.pass == "backward", point.integer("residual") != 0, point.integer("quantise") != 0};
}

/// The shape of a point, without values.
HostProblem problem_of(const Point& point) {
  HostProblem p;
  p.tokens = point.integer("tokens");
  p.hidden = point.integer("hidden");
  p.dtype = point.dtype;
  p.eps = 1e-5;
  return p;
}

/// Seeded inputs of a point.
std::unique_ptr<ProblemData> generate(const Point& point) {
  auto data = std::make_unique<ProblemData>();
  data->shape = problem_of(point);
  data->options = options_of(point);
  const auto values = [&](std::int64_t count, std::uint64_t stream) {
    std::vector<float> filled(static_cast<std::size_t>(count));
    testing::fill(filled, point.seed * 16 + stream, point.dtype);
    return filled;
  };
  const std::int64_t size = data->shape.tokens * data->shape.hidden;
  const Options& options = data->options;
  data->x = values(size, 1);
  data->weight = values(data->shape.hidden, 2);
  if (options.residual) (options.backward ? data->dresidual_out : data->residual) = values(size, 3);
  if (options.backward) data->dout = values(size, 4);
  data->link();
  return data;
}

class RmsnormCase final : public bench::Case {
 public:
  explicit RmsnormCase(const Point& point)
      : point_(point), data_(generate(point)), device_(*data_, point.backend) {}

  [[nodiscard]] bench::Work work() const override {
    if (data_->options.backward) {
      const auto args = shape_args<BackwardArgs>(data_->shape, data_->options);
      return {backward_flops(args), backward_bytes(args), "", "copy"};
    }
    const auto args = shape_args<ForwardArgs>(data_->shape, data_->options);
    return {forward_flops(args), forward_bytes(args), "", "copy"};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    if (data_->options.backward && data_->options.quantise) {
      return Status::skipped("quantise: the backward pass quantises nothing");
    }
    return visit(point_.backend, point_.threads, point_.pass,
                 [&]<class Exec, class Args>(const Exec& exec) {
                   return variants_of<Exec, Args>().supports(
                       exec, shape_args<Args>(data_->shape, data_->options), config);
                 });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    if (!reference_) reference_.emplace(*data_);
    return visit(
        point_.backend, point_.threads, point_.pass,
        [&]<class Exec, class Args>(const Exec& exec) -> std::unique_ptr<bench::Candidate> {
          DeviceOutput output(data_->shape, data_->options, point_.backend);
          Args args = device_.args<Args>();
          output.link(args);
          check(args);
          return std::make_unique<bench::VariantCandidate<Exec, Args, DeviceOutput>>(
              "katt::rmsnorm::workspace", exec, variants_of<Exec, Args>(), args, config,
              std::move(output),
              [this](const DeviceOutput& made) { return reference_->compare(made); });
        });
  }

  std::optional<bench::ForeignCase> foreign() override {
    const HostProblem& p = data_->shape;
    if (data_->options.quantise) return std::nullopt;
    if (!reference_) reference_.emplace(*data_);
    const std::vector<std::int64_t> shape{p.tokens, p.hidden};
    bench::ForeignCase foreign;
    foreign.parameters = {{"eps", p.eps}};
    const auto reads = [&](const char* name, const std::vector<float>& values) {
      if (!values.empty()) foreign.inputs.push_back({name, shape, p.dtype, values});
    };
    reads("x", data_->x);
    reads("residual", data_->residual);
    reads("dout", data_->dout);
    reads("dresidual_out", data_->dresidual_out);
    foreign.inputs.push_back({"weight", {p.hidden}, p.dtype, data_->weight});
    const bool backward = data_->options.backward;
    const bool sum = data_->options.residual && !backward;
    foreign.outputs.push_back({backward ? "dx" : "out", shape, p.dtype});
    if (sum) foreign.outputs.push_back({"residual_out", shape, p.dtype});
    if (backward) foreign.outputs.push_back({"dweight", {p.hidden}, p.dtype});
    foreign.verify = [this, sum, backward](std::span<const std::vector<float>> outputs) {
      const DeviceOutput made(data_->shape, data_->options, point_.backend);
      made.out.upload(outputs[0]);
      if (sum) made.residual_out.upload(outputs[1]);
      if (backward) made.dweight.upload(outputs[1]);
      return reference_->compare(made);
    };
    return foreign;
  }

 private:
  Point point_;
  std::unique_ptr<ProblemData> data_;
  DeviceProblem device_;
  std::optional<Reference> reference_;
};

/// Reads a problem from a case file, for the forward pass.
std::unique_ptr<ProblemData> read(const io::CaseFile& file) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  p.dtype = file.dtype();
  const char* axes = "(T, H)";
  const auto shape = file.shape("x", 2, axes);
  p.tokens = shape[0];
  p.hidden = shape[1];
  if (p.hidden == 0) file.reject("x", "holds rows of no elements, expected (T, H) with H > 0");
  p.eps = file.real("eps");
  if (!(p.eps >= 0) || !std::isfinite(p.eps)) {
    file.reject("eps",
                "holds " + std::to_string(p.eps) + ", expected a finite number of at least 0");
  }
  data->x = file.floats("x", shape, axes).values;
  data->weight = file.floats("weight", {p.hidden}, "(H)").values;
  if (file.has("residual")) {
    data->residual = file.floats("residual", shape, axes).values;
    data->options.residual = true;
  }
  if (file.has("dout")) data->dout = file.floats("dout", shape, axes).values;
  data->link();
  return data;
}

/// Runs one pass on a problem and returns its outputs.
template <class Args>
DeviceOutput run_pass(const ProblemData& data, const bench::RunOptions& options,
                      const std::string& path, io::TensorFile& out) {
  return visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
    const Args shapes = shape_args<Args>(data.shape, data.options);
    const auto& table = variants_of<Exec, Args>();
    const Config config = table.resolve(exec, shapes, options.config);
    bench::record_variant(out, table, config, std::is_same_v<Args, BackwardArgs>);
    if (const Status status = table.supports(exec, shapes, config); !status.is_ok()) {
      throw InputError("rmsnorm: " + status.reason());
    }
    const std::size_t needed = table.workspace_bytes(exec, shapes, config) + 4 * data.x.size() * 4;
    if (const std::size_t available = bench::available_memory(options.backend);
        needed > available) {
      throw InputError(path + ": variant " + config.variant + " needs " +
                       bench::human_bytes(static_cast<double>(needed)) + ", " +
                       bench::human_bytes(static_cast<double>(available)) + " are available");
    }
    const DeviceProblem problem(data, options.backend);
    DeviceOutput output(data.shape, data.options, options.backend);
    Args args = problem.args<Args>();
    output.link(args);
    check(args);
    const bench::Buffer workspace("katt::rmsnorm::workspace", options.backend,
                                  table.workspace_bytes(exec, args, config));
    if (const Status status = table.run(exec, args, config, workspace.workspace());
        !status.is_ok()) {
      throw InputError("rmsnorm: " + status.reason());
    }
    exec.fence("katt::rmsnorm::run_file");
    return output;
  });
}

class RmsnormOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "rmsnorm"; }
  [[nodiscard]] std::string summary() const override {
    return "x / sqrt(mean(x²) + eps) · weight over rows";
  }

  [[nodiscard]] std::vector<AxisSpec> axes() const override {
    constexpr double largest_extent = 1LL << 31;
    const auto integer = [](const char* name, std::int64_t fallback, double minimum, double maximum,
                            const char* help) {
      return AxisSpec{
          .name = name, .fallback = fallback, .minimum = minimum, .maximum = maximum, .help = help};
    };
    return {
        integer("tokens", 2048, 1, largest_extent, "rows"),
        integer("hidden", 4096, 1, largest_extent, "elements of a row"),
        integer("residual", 0, 0, 1,
                "1: a residual is added first; backward: its gradient is added to dx"),
        integer("quantise", 0, 0, 1,
                "1: int8 output with a scale per row instead of out (forward)"),
    };
  }

  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend backend,
                                                         std::string_view pass) const override {
    return visit(backend, 0, pass, []<class Exec, class Args>(const Exec&) {
      return bench::describe(variants_of<Exec, Args>());
    });
  }

  void validate(const Point& /*point*/) const override {}

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    return visit(point.backend, point.threads, point.pass,
                 [&]<class Exec, class Args>(const Exec& exec) {
                   return variants_of<Exec, Args>().resolve(
                       exec, shape_args<Args>(problem_of(point), options_of(point)), config);
                 });
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const HostProblem p = problem_of(point);
    const Options options = options_of(point);
    const auto element = static_cast<double>(size_of(point.dtype));
    const auto hidden = static_cast<double>(p.hidden);
    const double size = static_cast<double>(p.tokens) * hidden;
    const double inputs = 1 + (options.residual ? 1 : 0) + (options.backward ? 1 : 0);
    bench::Footprint bytes;
    bytes.tensors = static_cast<std::size_t>((element + 4.0) * (inputs * size + hidden));
    const double outputs =
        (options.quantise ? 0 : 1) + (options.residual && !options.backward ? 1 : 0);
    bytes.outputs = static_cast<std::size_t>(
        element * (outputs * size + (options.backward ? hidden : 0)) +
        (options.quantise ? size + 4.0 * static_cast<double>(p.tokens) : 0));
    bytes.workspace = visit(point.backend, point.threads, point.pass,
                            [&]<class Exec, class Args>(const Exec& exec) {
                              return variants_of<Exec, Args>().workspace_bytes(
                                  exec, shape_args<Args>(p, options), config);
                            });
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<RmsnormCase>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    const std::unique_ptr<ProblemData> data = read(in);
    const std::vector<std::int64_t> shape{data->shape.tokens, data->shape.hidden};
    const std::string path = in.path().string();
    const DeviceOutput forward = run_pass<ForwardArgs>(*data, options, path, out);
    out.set("out", {shape, forward.out.download()});
    if (data->options.residual) out.set("residual_out", {shape, forward.residual_out.download()});
    if (data->dout.empty()) return;
    data->options = {.backward = true};
    const DeviceOutput backward = run_pass<BackwardArgs>(*data, options, path, out);
    out.set("dx", {shape, backward.out.download()});
    out.set("dweight", {{data->shape.hidden}, backward.dweight.download()});
  }
};

}  // namespace

void register_op(bench::Registry& registry) { registry.add(std::make_unique<RmsnormOperator>()); }

}  // namespace katt::rmsnorm
