#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "bench/adapter.hpp"
#include "bench/candidate.hpp"
#include "io/case_file.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/cross_entropy/cross_entropy_ref.hpp"
#include "testing/expected.hpp"
#include "testing/fill.hpp"
#include "testing/sample.hpp"

namespace katt::cross_entropy {

namespace {

using bench::AxisSpec;
using bench::Point;

/// Owns the host values of a problem.
struct ProblemData {
  HostProblem shape;
  Dtype dtype = Dtype::f32;
  std::vector<float> logits;
  std::vector<std::int64_t> targets;

  ProblemData() = default;
  ProblemData(const ProblemData&) = delete;
  ProblemData& operator=(const ProblemData&) = delete;
  void link() {
    shape.logits = logits;
    shape.targets = targets;
  }
};

ForwardArgs forward_shape(const HostProblem& p, Dtype dtype) {
  ForwardArgs args;
  args.logits = {nullptr, dtype, {p.tokens, p.vocab}};
  args.loss = {nullptr, Dtype::f32, {1}};
  args.statistics = {nullptr, Dtype::f32, {p.tokens, 2}};
  return args;
}

BackwardArgs backward_shape(const HostProblem& p, Dtype dtype) {
  BackwardArgs args;
  args.logits = {nullptr, dtype, {p.tokens, p.vocab}};
  args.statistics = {nullptr, Dtype::f32, {p.tokens, 2}};
  args.dlogits = {nullptr, dtype, {p.tokens, p.vocab}};
  return args;
}

/// Logits spread like those of a trained model: most classes far below the largest.
std::unique_ptr<ProblemData> generate(const Point& point) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  p.tokens = point.integer("tokens");
  p.vocab = point.integer("vocab");
  data->dtype = point.dtype;
  data->logits.resize(static_cast<std::size_t>(p.tokens * p.vocab));
  testing::fill(data->logits, point.seed * 16 + 1, point.dtype, 3.0F);
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    data->targets.push_back(static_cast<std::int64_t>(
        testing::hash(point.seed * 16 + 2, static_cast<std::uint64_t>(t)) %
        static_cast<std::uint64_t>(p.vocab)));
  }
  data->link();
  return data;
}

/// The inputs of a problem on a backend.
struct DeviceProblem {
  bench::Tensor<2> logits;
  bench::Buffer targets;

  DeviceProblem(const ProblemData& data, Backend backend)
      : logits("katt::cross_entropy::logits", backend, data.dtype,
               {data.shape.tokens, data.shape.vocab}),
        targets(bench::integer_buffer("katt::cross_entropy::targets", backend, data.targets)) {
    logits.upload(data.logits);
  }
};

struct ForwardOutput {
  bench::Tensor<1> loss;
  bench::Tensor<2> statistics;

  ForwardOutput(const HostProblem& p, Backend backend)
      : loss("katt::cross_entropy::loss", backend, Dtype::f32, {1}),
        statistics("katt::cross_entropy::statistics", backend, Dtype::f32, {p.tokens, 2}) {}
  void poison() const {
    loss.poison();
    statistics.poison();
  }
};

struct BackwardOutput {
  bench::Tensor<2> dlogits;
  void poison() const { dlogits.poison(); }
};

ForwardArgs forward_args(const DeviceProblem& problem, const ForwardOutput& output) {
  ForwardArgs args;
  args.logits = problem.logits.ref();
  args.targets = bench::integers_of(problem.targets);
  args.loss = output.loss.ref();
  args.statistics = output.statistics.ref();
  return args;
}

/// Reference of a sample of the tokens, and limits by the rule of docs/measuring.md.
class Reference {
 public:
  explicit Reference(const ProblemData& data)
      : shape_(data.shape),
        sample_(testing::sample(shape_.tokens, 4e6 / static_cast<double>(shape_.vocab))) {
    testing::ErrorRule gradient(data.dtype);
    for (const std::int64_t t : sample_) {
      const auto exact = reference_dlogits(shape_, t);
      const UnfusedToken unfused = unfused_token(shape_, t, data.dtype);
      const double lse = reference_lse(shape_, t);
      const double loss =
          lse - shape_.logits[static_cast<std::size_t>(
                    t * shape_.vocab + shape_.targets[static_cast<std::size_t>(t)])];
      loss_error_ = std::max(loss_error_, std::abs(unfused.loss - loss));
      scale_ = std::max({scale_, 1.0, std::abs(lse)});
      for (std::size_t v = 0; v < exact.size(); ++v) gradient.add(exact[v], unfused.dlogits[v]);
    }
    gradient_limit_ = gradient.limit();
  }

  [[nodiscard]] bench::Errors forward(const ForwardOutput& output) const {
    const auto statistics = output.statistics.download();
    const double limit = 16 * 0x1p-23 * scale_;
    testing::Comparison lse;
    for (const std::int64_t t : sample_) {
      const auto at = static_cast<std::size_t>(2 * t);
      lse.add("lse", {t}, static_cast<double>(statistics[at]) + statistics[at + 1],
              reference_lse(shape_, t), limit);
    }
    // The mean of all tokens from statistics of which the sample above vouches for.
    double sum = 0;
    for (std::int64_t t = 0; t < shape_.tokens; ++t) {
      const auto at = static_cast<std::size_t>(2 * t);
      sum += static_cast<double>(statistics[at]) + statistics[at + 1] -
             shape_.logits[static_cast<std::size_t>(t * shape_.vocab +
                                                    shape_.targets[static_cast<std::size_t>(t)])];
    }
    testing::Comparison loss;
    loss.add("loss", {0}, output.loss.download()[0], sum / static_cast<double>(shape_.tokens),
             2 * loss_error_ + limit);
    bench::Errors errors = loss.result();
    if (errors.status.is_ok()) errors.status = lse.result().status;
    return errors;
  }

  /// A loss without statistics, against the reference of every token.
  [[nodiscard]] bench::Errors mean_loss(double loss) const {
    double sum = 0;
    for (std::int64_t t = 0; t < shape_.tokens; ++t) {
      sum += reference_lse(shape_, t) -
             shape_.logits[static_cast<std::size_t>(t * shape_.vocab +
                                                    shape_.targets[static_cast<std::size_t>(t)])];
    }
    testing::Comparison comparison;
    comparison.add("loss", {0}, loss, sum / static_cast<double>(shape_.tokens),
                   2 * loss_error_ + 16 * 0x1p-23 * scale_);
    return comparison.result();
  }

  [[nodiscard]] bench::Errors backward(const BackwardOutput& output) const {
    const auto dlogits = output.dlogits.download();
    testing::Comparison comparison;
    for (const std::int64_t t : sample_) {
      const auto exact = reference_dlogits(shape_, t);
      for (std::int64_t v = 0; v < shape_.vocab; ++v) {
        comparison.add("dlogits", {t, v}, dlogits[static_cast<std::size_t>(t * shape_.vocab + v)],
                       exact[static_cast<std::size_t>(v)], gradient_limit_);
      }
    }
    return comparison.result();
  }

 private:
  HostProblem shape_;
  std::vector<std::int64_t> sample_;
  double loss_error_ = 0;
  double scale_ = 0;
  double gradient_limit_ = 0;
};

class CrossEntropyCase final : public bench::Case {
 public:
  explicit CrossEntropyCase(const Point& point)
      : data_(generate(point)),
        device_(*data_, point.backend),
        statistics_(data_->shape, point.backend),
        backend_(point.backend),
        threads_(point.threads),
        backward_(point.pass == "backward") {
    if (!backward_) return;
    visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      bench::run_variant("cross_entropy", exec, forward_variants<Exec>(),
                         forward_args(device_, statistics_), {});
    });
  }

  [[nodiscard]] bench::Work work() const override {
    if (backward_) {
      const BackwardArgs args = backward_shape(data_->shape, data_->dtype);
      return {backward_flops(args), backward_bytes(args), "", "copy"};
    }
    const ForwardArgs args = forward_args(device_, statistics_);
    return {forward_flops(args), forward_bytes(args), "", "read"};
  }

  [[nodiscard]] Status supports(const Config& config) const override {
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      const HostProblem& p = data_->shape;
      return backward_
                 ? backward_variants<Exec>().supports(exec, backward_shape(p, data_->dtype), config)
                 : forward_variants<Exec>().supports(exec, forward_shape(p, data_->dtype), config);
    });
  }

  std::unique_ptr<bench::Candidate> prepare(const Config& config) override {
    if (!reference_) reference_.emplace(*data_);
    return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
      return backward_ ? backward_candidate(exec, config) : forward_candidate(exec, config);
    });
  }

  /// Of another program's forward pass only the loss is asked, not the statistics.
  std::optional<bench::ForeignCase> foreign() override {
    if (!reference_) reference_.emplace(*data_);
    const HostProblem& p = data_->shape;
    const std::vector<std::int64_t> shape{p.tokens, p.vocab};
    bench::ForeignCase foreign;
    foreign.inputs = {{"logits", shape, data_->dtype, data_->logits},
                      {"targets", {p.tokens}, Dtype::f32, {}, data_->targets}};
    if (backward_) {
      foreign.outputs = {{"dlogits", shape, data_->dtype}};
    } else {
      foreign.outputs = {{"loss", {1}, Dtype::f32}};
    }
    foreign.verify = [this](std::span<const std::vector<float>> outputs) {
      if (!backward_) return reference_->mean_loss(outputs[0][0]);
      const BackwardOutput made{{"katt::cross_entropy::dlogits",
                                 backend_,
                                 data_->dtype,
                                 {data_->shape.tokens, data_->shape.vocab}}};
      made.dlogits.upload(outputs[0]);
      return reference_->backward(made);
    };
    return foreign;
  }

 private:
  template <class Exec>
  std::unique_ptr<bench::Candidate> forward_candidate(const Exec& exec, const Config& config) {
    ForwardOutput output(data_->shape, backend_);
    const ForwardArgs args = forward_args(device_, output);
    check(args);
    return std::make_unique<bench::VariantCandidate<Exec, ForwardArgs, ForwardOutput>>(
        "katt::cross_entropy::workspace", exec, forward_variants<Exec>(), args, config,
        std::move(output), [this](const ForwardOutput& made) { return reference_->forward(made); });
  }

  template <class Exec>
  std::unique_ptr<bench::Candidate> backward_candidate(const Exec& exec, const Config& config) {
    BackwardArgs args = backward_shape(data_->shape, data_->dtype);
    BackwardOutput output{
        {"katt::cross_entropy::dlogits", backend_, data_->dtype, args.dlogits.extent}};
    args.logits = device_.logits.ref();
    args.targets = bench::integers_of(device_.targets);
    args.statistics = statistics_.statistics.ref();
    args.dlogits = output.dlogits.ref();
    check(args);
    return std::make_unique<bench::VariantCandidate<Exec, BackwardArgs, BackwardOutput>>(
        "katt::cross_entropy::workspace", exec, backward_variants<Exec>(), args, config,
        std::move(output),
        [this](const BackwardOutput& made) { return reference_->backward(made); });
  }

  std::unique_ptr<ProblemData> data_;
  DeviceProblem device_;
  ForwardOutput statistics_;  ///< what the backward pass reads
  std::optional<Reference> reference_;
  Backend backend_;
  int threads_;
  bool backward_;
};

std::unique_ptr<ProblemData> read(const io::CaseFile& file) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  data->dtype = file.dtype();
  const auto shape = file.shape("logits", 2, "(T, V)");
  p.tokens = shape[0];
  p.vocab = shape[1];
  if (p.vocab < 1) file.reject("logits", "holds no classes, expected at least 1");
  data->logits = file.floats("logits", shape, "(T, V)").values;
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

class CrossEntropyOperator final : public bench::Operator {
 public:
  [[nodiscard]] std::string name() const override { return "cross_entropy"; }
  [[nodiscard]] std::string summary() const override {
    return "mean of log Σ exp(logits) − logits[target] over the tokens";
  }
  [[nodiscard]] std::vector<AxisSpec> axes() const override {
    return {bench::integer_axis("tokens", 1024, 1, "rows of the logits"),
            bench::integer_axis("vocab", 32000, 1, "classes")};
  }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }

  [[nodiscard]] std::vector<bench::VariantInfo> variants(Backend backend,
                                                         std::string_view pass) const override {
    return visit_backend(backend, 0, [&]<class Exec>(const Exec&) {
      return pass == "backward" ? bench::describe(backward_variants<Exec>())
                                : bench::describe(forward_variants<Exec>());
    });
  }

  void validate(const Point&) const override {}

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    HostProblem p;
    p.tokens = point.integer("tokens");
    p.vocab = point.integer("vocab");
    return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
      return point.pass == "backward"
                 ? backward_variants<Exec>().resolve(exec, backward_shape(p, point.dtype), config)
                 : forward_variants<Exec>().resolve(exec, forward_shape(p, point.dtype), config);
    });
  }

  [[nodiscard]] bench::Footprint footprint(const Point& point,
                                           const Config& config) const override {
    HostProblem p;
    p.tokens = point.integer("tokens");
    p.vocab = point.integer("vocab");
    const auto tokens = static_cast<std::size_t>(p.tokens);
    const std::size_t elements = tokens * static_cast<std::size_t>(p.vocab);
    const bool backward = point.pass == "backward";
    bench::Footprint bytes;
    bytes.tensors = elements * (size_of(point.dtype) + sizeof(float)) + tokens * 24;
    bytes.outputs = backward ? elements * size_of(point.dtype) : tokens * 8 + 4;
    bytes.workspace =
        visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
          return backward ? backward_variants<Exec>().workspace_bytes(
                                exec, backward_shape(p, point.dtype), config)
                          : forward_variants<Exec>().workspace_bytes(
                                exec, forward_shape(p, point.dtype), config);
        });
    return bytes;
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return std::make_unique<CrossEntropyCase>(point);
  }

  void run_file(const io::CaseFile& in, const bench::RunOptions& options,
                io::TensorFile& out) const override {
    const auto data = read(in);
    const HostProblem& p = data->shape;
    visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
      const DeviceProblem problem(*data, options.backend);
      const ForwardOutput output(p, options.backend);
      const ForwardArgs args = forward_args(problem, output);
      check(args);
      const auto& forward = forward_variants<Exec>();
      const auto& backward = backward_variants<Exec>();
      bench::record_variant(out, forward,
                            bench::run_variant(name(), exec, forward, args, options.config));
      out.set("loss", {{}, output.loss.download()});

      BackwardArgs back = backward_shape(p, data->dtype);
      const bench::Tensor<2> dlogits("katt::cross_entropy::dlogits", options.backend, data->dtype,
                                     back.dlogits.extent);
      back.logits = args.logits;
      back.targets = args.targets;
      back.statistics = args.statistics;
      back.dlogits = dlogits.ref();
      check(back);
      bench::record_variant(out, backward,
                            bench::run_variant(name(), exec, backward, back, options.config), true);
      out.set("dlogits", {{p.tokens, p.vocab}, dlogits.download()});
    });
  }
};

}  // namespace

void register_op(bench::Registry& registry) {
  registry.add(std::make_unique<CrossEntropyOperator>());
}

}  // namespace katt::cross_entropy
