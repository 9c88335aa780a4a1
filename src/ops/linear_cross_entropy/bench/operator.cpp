#include <memory>
#include <optional>
#include <string>

#include "io/hdf5/case_file.hpp"
#include "op/adapter.hpp"
#include "op/candidate.hpp"
#include "op/matrix_ceiling.hpp"
#include "op/reference/fill.hpp"
#include "ops/linear_cross_entropy/bench/case.hpp"

namespace katt::linear_cross_entropy {

namespace {

using bench::AxisSpec;
using bench::Point;

/// The shape of a point, without values.
HostProblem problem_of(const Point& point) {
  HostProblem p;
  p.tokens = point.integer("tokens");
  p.hidden_size = point.integer("hidden");
  p.vocab = point.integer("vocab");
  return p;
}

std::unique_ptr<ProblemData> generate(const Point& point) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  p = problem_of(point);
  data->dtype = point.dtype;
  data->hidden.resize(static_cast<std::size_t>(p.tokens * p.hidden_size));
  data->weight.resize(static_cast<std::size_t>(p.vocab * p.hidden_size));
  testing::fill(data->hidden, point.seed * 16 + 1, point.dtype);
  testing::fill(data->weight, point.seed * 16 + 2, point.dtype, 0.03125F);
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    data->targets.push_back(static_cast<std::int64_t>(
        testing::hash(point.seed * 16 + 3, static_cast<std::uint64_t>(t)) %
        static_cast<std::uint64_t>(p.vocab)));
  }
  data->link();
  return data;
}

BackwardOutput backward_output(const HostProblem& p, Dtype dtype, Backend backend) {
  return {{"katt::linear_cross_entropy::dhidden", backend, dtype, {p.tokens, p.hidden_size}},
          {"katt::linear_cross_entropy::dweight", backend, dtype, {p.vocab, p.hidden_size}},
          std::nullopt};
}

class LinearCrossEntropyCase final : public bench::Case {
 public:
  explicit LinearCrossEntropyCase(const Point& point)
      : data_(generate(point)),
        device_(*data_, point.backend),
        forward_(data_->shape, data_->dtype, point.backend, false),
        backend_(point.backend),
        threads_(point.threads),
        backward_(point.pass == "backward") {
    if (!backward_) return;
    visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      bench::run_variant("linear_cross_entropy", exec, forward_variants<Exec>(),
                         link(device_, forward_), {});
    });
  }

  [[nodiscard]] bench::Work work() const override {
    const std::string ceiling = bench::matrix_ceiling(backend_, data_->dtype);
    if (backward_) {
      const BackwardArgs args = backward_shape(data_->shape, data_->dtype);
      return {backward_flops(args), backward_bytes(args), ceiling};
    }
    const ForwardArgs args = forward_shape(data_->shape, data_->dtype);
    return {forward_flops(args), forward_bytes(args), ceiling};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      return backward_ ? backward_variants<Exec>().supports(
                             exec, backward_shape(data_->shape, data_->dtype), config)
                       : forward_variants<Exec>().supports(
                             exec, forward_shape(data_->shape, data_->dtype), config);
    });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    if (!reference_) reference_.emplace(*data_);
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      return backward_ ? backward_candidate(exec, config) : forward_candidate(exec, config);
    });
  }

  /// Another program keeps its own statistics of the tokens: its loss and gradients are compared.
  std::optional<bench::ForeignCase> foreign() override {
    if (!reference_) reference_.emplace(*data_);
    const HostProblem& p = data_->shape;
    const std::vector<std::int64_t> hidden{p.tokens, p.hidden_size};
    const std::vector<std::int64_t> weight{p.vocab, p.hidden_size};
    bench::ForeignCase foreign;
    foreign.inputs = {{"hidden", hidden, data_->dtype, data_->hidden},
                      {"weight", weight, data_->dtype, data_->weight},
                      {"targets", {p.tokens}, Dtype::f32, {}, data_->targets}};
    if (!backward_) {
      foreign.outputs = {{"loss", {1}, Dtype::f32}};
      // The mean is held against statistics of our own forward pass, which the reference checks.
      visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
        bench::run_variant("linear_cross_entropy", exec, forward_variants<Exec>(),
                           link(device_, forward_), {});
      });
    } else {
      foreign.outputs = {{"dhidden", hidden, data_->dtype}, {"dweight", weight, data_->dtype}};
    }
    foreign.verify = [this](std::span<const std::vector<float>> outputs) {
      const auto statistics = forward_.statistics.download();
      return backward_ ? reference_->backward(outputs[0], outputs[1], statistics)
                       : reference_->forward(outputs[0][0], statistics);
    };
    return foreign;
  }

 private:
  template <class Exec>
  std::unique_ptr<bench::Candidate> forward_candidate(const Exec& exec, const Config& config) {
    ForwardOutput output(data_->shape, data_->dtype, backend_, false);
    const ForwardArgs args = link(device_, output);
    return std::make_unique<bench::VariantCandidate<Exec, ForwardArgs, ForwardOutput>>(
        "katt::linear_cross_entropy::workspace", exec, forward_variants<Exec>(), args, config,
        std::move(output), [this](const ForwardOutput& made) {
          return reference_->forward(made.loss.download()[0], made.statistics.download());
        });
  }

  template <class Exec>
  std::unique_ptr<bench::Candidate> backward_candidate(const Exec& exec, const Config& config) {
    BackwardOutput output = backward_output(data_->shape, data_->dtype, backend_);
    if (config.variant ==
        "naive") {  // the logits that it keeps from its forward pass are its memory
      output.saved.emplace(data_->shape, data_->dtype, backend_, true);
      bench::run_variant("linear_cross_entropy", exec, forward_variants<Exec>(),
                         link(device_, *output.saved), {"naive", {}});
    }
    const BackwardArgs args = link(device_, forward_, output);
    return std::make_unique<bench::VariantCandidate<Exec, BackwardArgs, BackwardOutput>>(
        "katt::linear_cross_entropy::workspace", exec, backward_variants<Exec>(), args, config,
        std::move(output), [this](const BackwardOutput& made) {
          return reference_->backward(made.dhidden.download(), made.dweight.download(),
                                      forward_.statistics.download());
        });
  }

  std::unique_ptr<ProblemData> data_;
  DeviceProblem device_;
  ForwardOutput forward_;  ///< what the backward pass reads
  std::optional<Reference> reference_;
  Backend backend_;
  int threads_;
  bool backward_;
};

std::unique_ptr<ProblemData> read(const io::CaseFile& file) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  data->dtype = file.dtype();
  const auto hidden = file.shape("hidden", 2, "(T, H)");
  const auto weight = file.shape("weight", 2, "(V, H)");
  p.tokens = hidden[0];
  p.hidden_size = hidden[1];
  p.vocab = weight[0];
  if (p.vocab < 1) file.reject("weight", "holds no rows, expected at least 1");
  data->hidden = file.floats("hidden", hidden, "(T, H)").values;
  data->weight = file.floats("weight", {p.vocab, p.hidden_size}, "(V, H)").values;
  data->targets = file.integers("targets", {p.tokens}, "(T)").values;
  for (const std::int64_t target : data->targets) {
    if (target != p.ignore_index && (target < 0 || target >= p.vocab)) {
      file.reject("targets", "holds " + std::to_string(target) + ", expected 0 to " +
                                 std::to_string(p.vocab - 1) + " or " +
                                 std::to_string(p.ignore_index));
    }
  }
  data->link();
  return data;
}

class LinearCrossEntropyOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "linear_cross_entropy"; }
  [[nodiscard]] std::string summary() const override {
    return "cross-entropy of hidden · weightᵀ without stored logits";
  }
  [[nodiscard]] std::vector<AxisSpec> axes() const override {
    return {bench::integer_axis("tokens", 1024, 1, "rows of hidden"),
            bench::integer_axis("hidden", 1024, 1, "columns of hidden"),
            bench::integer_axis("vocab", 32000, 1, "rows of the weight")};
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
    const HostProblem p = problem_of(point);
    return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
      return point.pass == "backward"
                 ? backward_variants<Exec>().resolve(exec, backward_shape(p, point.dtype), config)
                 : forward_variants<Exec>().resolve(exec, forward_shape(p, point.dtype), config);
    });
  }

  [[nodiscard]] std::vector<bench::CaseTensor> case_tensors() const override {
    using Role = bench::CaseTensor::Role;
    return {{Role::input, "hidden", "(T, H)"},     {Role::input, "weight", "(V, H)"},
            {Role::input, "targets", "(T)"},       {Role::output, "loss", "()"},
            {Role::gradient, "dhidden", "(T, H)"}, {Role::gradient, "dweight", "(V, H)"}};
  }

  [[nodiscard]] Status supports(const Point& point, const Config& config) const override {
    const HostProblem p = problem_of(point);
    return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
      return point.pass == "backward"
                 ? backward_variants<Exec>().supports(exec, backward_shape(p, point.dtype), config)
                 : forward_variants<Exec>().supports(exec, forward_shape(p, point.dtype), config);
    });
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    const HostProblem p = problem_of(point);
    const auto inputs = static_cast<std::size_t>((p.tokens + p.vocab) * p.hidden_size);
    const auto tokens = static_cast<std::size_t>(p.tokens);
    const std::size_t element = size_of(point.dtype);
    const bool backward = point.pass == "backward";
    bench::Footprint bytes;
    bytes.tensors = inputs * (element + sizeof(float)) + tokens * 24;
    bytes.outputs = backward ? inputs * element : tokens * 8 + 4;
    bytes.workspace =
        visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
          return backward ? backward_variants<Exec>().workspace_bytes(
                                exec, backward_shape(p, point.dtype), config)
                          : forward_variants<Exec>().workspace_bytes(
                                exec, forward_shape(p, point.dtype), config);
        });
    if (backward && config.variant == "naive") {
      bytes.workspace += tokens * static_cast<std::size_t>(p.vocab) * element;
    }
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<LinearCrossEntropyCase>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    const auto data = read(in);
    const HostProblem& p = data->shape;
    visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
      const DeviceProblem problem(*data, options.backend);
      const ForwardOutput forward(p, data->dtype, options.backend,
                                  options.config.variant == "naive");
      const auto run = [&](const auto& table, const auto& args, bool backward) {
        const Config ran = bench::run_variant(name(), exec, table, args, options.config);
        bench::record_variant(out, ran, table.find(ran.variant).parameters, backward);
      };
      run(forward_variants<Exec>(), link(problem, forward), false);
      out.set("loss", {{}, forward.loss.download()});
      const BackwardOutput gradients = backward_output(p, data->dtype, options.backend);
      run(backward_variants<Exec>(), link(problem, forward, gradients), true);
      out.set("dhidden", {{p.tokens, p.hidden_size}, gradients.dhidden.download()});
      out.set("dweight", {{p.vocab, p.hidden_size}, gradients.dweight.download()});
    });
  }
};

}  // namespace

void register_op(bench::Registry& registry) {
  registry.add(std::make_unique<LinearCrossEntropyOperator>());
}

}  // namespace katt::linear_cross_entropy
