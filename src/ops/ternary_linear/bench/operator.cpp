#include <memory>
#include <optional>
#include <string>

#include "io/hdf5/case_file.hpp"
#include "op/adapter.hpp"
#include "op/candidate.hpp"
#include "op/matrix_ceiling.hpp"
#include "op/reference/fill.hpp"
#include "ops/ternary_linear/bench/case.hpp"

namespace katt::ternary_linear {

namespace {

using bench::AxisSpec;
using bench::Point;

/// The shape of a point, without values.
HostProblem problem_of(const Point& point) {
  HostProblem p;
  p.tokens = point.integer("tokens");
  p.in_features = point.integer("in_features");
  p.out_features = point.integer("out_features");
  return p;
}

std::unique_ptr<ProblemData> generate(const Point& point) {
  auto data = std::make_unique<ProblemData>();
  data->shape = problem_of(point);
  data->dtype = point.dtype;
  const HostProblem& p = data->shape;
  const auto values = [&](std::int64_t count, std::uint64_t stream, float scale) {
    std::vector<float> filled(static_cast<std::size_t>(count));
    testing::fill(filled, point.seed * 16 + stream, point.dtype, scale);
    return filled;
  };
  data->x = values(p.tokens * p.in_features, 1, 1.0F);
  data->weight = values(p.out_features * p.in_features, 2, 0.02F);
  if (point.pass == "backward") data->dout = values(p.tokens * p.out_features, 3, 1.0F);
  data->link();
  return data;
}

/// x and dout on a backend.
struct DeviceProblem {
  bench::Tensor<2> x, dout;

  DeviceProblem(const ProblemData& data, Backend backend) {
    const HostProblem& p = data.shape;
    x = {"katt::ternary_linear::x", backend, data.dtype, {p.tokens, p.in_features}};
    x.upload(data.x);
    if (data.dout.empty()) return;
    dout = {"katt::ternary_linear::dout", backend, data.dtype, {p.tokens, p.out_features}};
    dout.upload(data.dout);
  }
};

/// The memory of a variant: its form of the weight, made before it is timed, and its outputs.
struct ForwardOutput {
  PreparedWeight::OnDevice weight;
  bench::Tensor<2> out;
  void poison() const { out.poison(); }
};

struct BackwardOutput {
  PreparedWeight::OnDevice weight;
  bench::Tensor<2> dx, dweight;
  void poison() const {
    dx.poison();
    dweight.poison();
  }
};

ForwardArgs link(const ForwardArgs& shape, const DeviceProblem& problem,
                 const ForwardOutput& output) {
  ForwardArgs args = shape;
  args.x = problem.x.ref();
  output.weight.add_to(args);
  args.out = output.out.ref();
  check(args);
  return args;
}

BackwardArgs link(const BackwardArgs& shape, const DeviceProblem& problem,
                  const BackwardOutput& output) {
  BackwardArgs args = shape;
  args.x = problem.x.ref();
  args.dout = problem.dout.ref();
  output.weight.add_to(args);
  args.dx = output.dx.ref();
  args.dweight = output.dweight.ref();
  check(args);
  return args;
}

ForwardOutput make_output(const ForwardArgs& shape, const PreparedWeight& weight,
                          const std::string& variant, Backend backend) {
  return {weight.upload(variant, backend),
          {"katt::ternary_linear::out", backend, shape.out.dtype, shape.out.extent}};
}

BackwardOutput make_output(const BackwardArgs& shape, const PreparedWeight& weight,
                           const std::string& variant, Backend backend) {
  return {weight.upload(variant, backend),
          {"katt::ternary_linear::dx", backend, shape.dx.dtype, shape.dx.extent},
          {"katt::ternary_linear::dweight", backend, shape.dweight.dtype, shape.dweight.extent}};
}

template <class Exec>
auto& table_of(const ForwardArgs& /*pass*/) {
  return forward_variants<Exec>();
}
template <class Exec>
auto& table_of(const BackwardArgs& /*pass*/) {
  return backward_variants<Exec>();
}

/// Calls f with the arguments' shapes of the pass.
template <class F>
auto visit_pass(bool backward, const HostProblem& p, Dtype dtype, const F& f) {
  return backward ? f(backward_shape(p, dtype)) : f(forward_shape(p, dtype));
}

class TernaryCase final : public bench::Case {
 public:
  explicit TernaryCase(const Point& point)
      : data_(generate(point)),
        device_(*data_, point.backend),
        weight_(*data_, point.backend, point.threads),
        backend_(point.backend),
        threads_(point.threads),
        backward_(point.pass == "backward") {}

  [[nodiscard]] bench::Work work() const override {
    if (backward_) {
      const BackwardArgs args = backward_shape(data_->shape, data_->dtype);
      return {backward_flops(args), backward_bytes(args),
              bench::matrix_ceiling(backend_, data_->dtype)};
    }
    // No measured peak bounds the integer products.
    const ForwardArgs args = forward_shape(data_->shape, data_->dtype);
    return {forward_flops(args), forward_bytes(args), ""};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      return visit_pass(backward_, data_->shape, data_->dtype, [&](const auto& args) {
        return table_of<Exec>(args).supports(exec, args, config);
      });
    });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    if (!checks_) checks_.emplace(*data_);
    return visit_pass(backward_, data_->shape, data_->dtype,
                      [&](const auto& shape) { return this->candidate_of(shape, config); });
  }

  /// Another program gets the weight as naive does: quantised, and dequantised again.
  std::optional<bench::ForeignCase> foreign() override {
    if (!checks_) checks_.emplace(*data_);
    const HostProblem& p = data_->shape;
    const Dtype dtype = data_->dtype;
    const std::vector<std::int64_t> x{p.tokens, p.in_features};
    const std::vector<std::int64_t> weight{p.out_features, p.in_features};
    const std::vector<std::int64_t> out{p.tokens, p.out_features};
    bench::ForeignCase foreign;
    foreign.inputs = {{"x", x, dtype, data_->x}, {"weight", weight, dtype, weight_.dense()}};
    if (backward_) {
      foreign.inputs.push_back({"dout", out, dtype, data_->dout});
      foreign.outputs = {{"dx", x, dtype}, {"dweight", weight, dtype}};
    } else {
      foreign.outputs = {{"out", out, dtype}};
    }
    foreign.verify = [this](std::span<const std::vector<float>> outputs) {
      return backward_ ? checks_->backward(outputs[0], outputs[1]) : checks_->forward(outputs[0]);
    };
    return foreign;
  }

 private:
  template <class Args>
  std::unique_ptr<bench::Candidate> candidate_of(const Args& shape, const Config& config) {
    return visit_backend(backend_, threads_,
                         [&](const auto& exec) { return this->candidate(exec, shape, config); });
  }
  template <class Exec, class Args>
  std::unique_ptr<bench::Candidate> candidate(const Exec& exec, const Args& shape,
                                              const Config& config) {
    auto output = make_output(shape, weight_, config.variant, backend_);
    using Output = decltype(output);
    const Args args = link(shape, device_, output);
    return std::make_unique<bench::VariantCandidate<Exec, Args, Output>>(
        "katt::ternary_linear::workspace", exec, table_of<Exec>(args), args, config,
        std::move(output), [this](const Output& made) { return verify(made); });
  }

  [[nodiscard]] bench::Errors verify(const ForwardOutput& made) const {
    return checks_->forward(made.out.download());
  }
  [[nodiscard]] bench::Errors verify(const BackwardOutput& made) const {
    return checks_->backward(made.dx.download(), made.dweight.download());
  }

  std::unique_ptr<ProblemData> data_;
  DeviceProblem device_;
  PreparedWeight weight_;
  std::optional<Checks> checks_;
  Backend backend_;
  int threads_;
  bool backward_;
};

std::unique_ptr<ProblemData> read(const io::CaseFile& file) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  data->dtype = file.dtype();
  const auto x = file.shape("x", 2, "(T, I)");
  const auto weight = file.shape("weight", 2, "(O, I)");
  p.tokens = x[0];
  p.in_features = x[1];
  p.out_features = weight[0];
  if (p.in_features < 1 || p.in_features > max_in_features) {
    file.reject("x", "holds rows of " + std::to_string(p.in_features) + ", expected 1 to " +
                         std::to_string(max_in_features));
  }
  if (p.out_features < 1) file.reject("weight", "holds no rows, expected at least 1");
  data->x = file.floats("x", x, "(T, I)").values;
  data->weight = file.floats("weight", {p.out_features, p.in_features}, "(O, I)").values;
  if (file.has("dout")) {
    data->dout = file.floats("dout", {p.tokens, p.out_features}, "(T, O)").values;
  }
  data->link();
  return data;
}

class TernaryLinearOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "ternary_linear"; }
  [[nodiscard]] std::string summary() const override {
    return "BitNet b1.58: ternary weights, 8-bit activations";
  }
  [[nodiscard]] std::vector<AxisSpec> axes() const override {
    return {bench::integer_axis("tokens", 1, 1, "rows of x"),
            bench::integer_axis("in_features", 4096, 1, "columns of x",
                                static_cast<double>(max_in_features)),
            bench::integer_axis("out_features", 4096, 1, "columns of out")};
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend backend,
                                                         std::string_view pass) const override {
    return visit_backend(backend, 0, [&]<class Exec>(const Exec&) {
      return pass == "backward" ? bench::describe(backward_variants<Exec>())
                                : bench::describe(forward_variants<Exec>());
    });
  }

  void validate(const Point& /*point*/) const override {}

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
      return visit_pass(
          point.pass == "backward", problem_of(point), point.dtype,
          [&](const auto& args) { return table_of<Exec>(args).resolve(exec, args, config); });
    });
  }

  [[nodiscard]] std::vector<bench::CaseTensor> case_tensors() const override {
    using Role = bench::CaseTensor::Role;
    return {{Role::input, "x", "(T, I)"},
            {Role::input, "weight", "(O, I)"},
            {Role::output, "out", "(T, O)"}};
  }

  [[nodiscard]] Status supports(const Point& point, const Config& config) const override {
    return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
      return visit_pass(
          point.pass == "backward", problem_of(point), point.dtype,
          [&](const auto& args) { return table_of<Exec>(args).supports(exec, args, config); });
    });
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const HostProblem p = problem_of(point);
    const bool backward = point.pass == "backward";
    const auto x = static_cast<std::size_t>(p.tokens * p.in_features);
    const auto out = static_cast<std::size_t>(p.tokens * p.out_features);
    const auto weight = static_cast<std::size_t>(p.out_features * p.in_features);
    const std::size_t element = size_of(point.dtype);
    bench::Footprint bytes;
    // On the host: the values in f32, the weight dequantised and in both packed forms.
    bytes.tensors = (x + (backward ? out : 0)) * (element + 4) + weight * 9;
    bytes.outputs =
        (backward ? x + weight : out) * element + weight_bytes(p, point.dtype, config.variant);
    bytes.workspace =
        visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
          return visit_pass(backward, p, point.dtype, [&](const auto& args) {
            return table_of<Exec>(args).workspace_bytes(exec, args, config);
          });
        });
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<TernaryCase>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    const auto data = read(in);
    const HostProblem& p = data->shape;
    const DeviceProblem problem(*data, options.backend);
    const PreparedWeight weight(*data, options.backend, options.threads);
    visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
      const auto run = [&](const auto& shape) {
        const auto& table = table_of<Exec>(shape);
        const Config config = table.resolve(exec, shape, options.config);
        auto made = make_output(shape, weight, config.variant, options.backend);
        const auto args = link(shape, problem, made);
        const Config ran = bench::run_variant(name(), exec, table, args, config);
        bench::record_variant(out, ran, table.find(ran.variant).parameters,
                              std::is_same_v<decltype(args), const BackwardArgs>);
        return made;
      };
      out.set("out",
              {{p.tokens, p.out_features}, run(forward_shape(p, data->dtype)).out.download()});
      if (data->dout.empty()) return;
      const auto gradients = run(backward_shape(p, data->dtype));
      out.set("dx", {{p.tokens, p.in_features}, gradients.dx.download()});
      out.set("dweight", {{p.out_features, p.in_features}, gradients.dweight.download()});
    });
  }
};

}  // namespace

void register_op(bench::Registry& registry) {
  registry.add(std::make_unique<TernaryLinearOperator>());
}

}  // namespace katt::ternary_linear
