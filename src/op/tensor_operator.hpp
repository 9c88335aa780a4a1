#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/hdf5/case_file.hpp"
#include "op/adapter.hpp"
#include "op/candidate.hpp"
#include "op/reference/expected.hpp"
#include "op/registry.hpp"
#include "op/tensor_pass.hpp"

/// The bench adapter of an operator with a forward and a backward pass, made from a description of
/// its tensors. A description Op has the static members
///
///   summary                           a text
///   axes()                            the axes of a sweep; a real one is an attribute of a case file
///   inputs(), outputs()               tensors of the forward pass
///   gradients()                       outputs of the backward pass
///   forward_args(Tensors), backward_args(Tensors)
///   expected(Problem)                 a sample of every output
///
///   KATT_PASSES_OF(op)                its name and its tables of variants
///
/// and, where it needs them,
///
///   work(args, backend)               of either pass; else forward_flops(args), forward_bytes(args)
///   or work(problem, args, backend)   or backward_…, held against the copy bandwidth
///   forward_variants<Exec>(Problem)   and backward_…: the tables, where they depend on the problem
///   backward_inputs()                 else the inputs, and `dout` of the shape of the first output
///   parameters()                      names and values of what is no axis, attributes of a case file
///   complete(Problem&)                adds extents that follow from others
///   derive(exec, Tensors)             fills the derived inputs
///   compare(Problem, Expected, HostValues, Comparison& reported, Comparison& unreported)
///                                     checks of outputs that expected() cannot say
///   validate(Problem)                 throws InputError for a point that makes no sense
///   supports(Problem)                 a Status for what no variant can run
///   is_foreign(Problem)               whether another program could compute it
///   read(CaseFile, Problem&)          reads further attributes of a file, refuses what it holds
///   after_forward(Problem&)           what the backward pass of a file reads of the forward pass
namespace katt::bench {

template <class Op>
class TensorOperator final : public Operator {
 public:
  using Forward = ForwardPass<Op>;
  using Backward = BackwardPass<Op>;

  [[nodiscard]] std::string name() const override { return Op::name; }
  [[nodiscard]] std::string summary() const override { return Op::summary; }
  [[nodiscard]] std::vector<AxisSpec> axes() const override { return Op::axes(); }
  [[nodiscard]] std::vector<std::string> passes() const override { return {"forward", "backward"}; }
  void validate(const Point& point) const override {
    if constexpr (requires(const Problem& problem) { Op::validate(problem); }) {
      Op::validate(problem_of(point));
    }
  }

  [[nodiscard]] std::vector<VariantInfo> variants(Backend backend,
                                                  std::string_view pass) const override {
    return visit_backend(backend, 0, [&]<class Exec>(const Exec&) {
      return visit_pass(pass, [](auto p) { return describe(p.template variants<Exec>({})); });
    });
  }

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    const Problem problem = problem_of(point);
    return visit_pass(point.pass, [&](auto pass) {
      return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
        return pass.template variants<Exec>(problem).resolve(
            exec, shape_args<decltype(pass)>(problem), config);
      });
    });
  }

  [[nodiscard]] Status supports(const Point& point, const Config& config) const override {
    return visit_pass(point.pass, [&](auto pass) {
      return supports_of<decltype(pass)>(problem_of(point), point.backend, point.threads, config);
    });
  }

  [[nodiscard]] std::vector<CaseTensor> case_tensors() const override {
    std::vector<CaseTensor> tensors;
    for (const TensorSpec& spec : Forward::inputs()) {
      if (spec.derived) continue;
      tensors.push_back({CaseTensor::Role::input, spec.name, spec.letters, !spec.when.empty()});
    }
    for (const TensorSpec& spec : Forward::outputs()) {
      if (spec.foreign) tensors.push_back({CaseTensor::Role::output, spec.name, spec.letters});
    }
    for (const TensorSpec& spec : Backward::outputs()) {
      if (spec.foreign) tensors.push_back({CaseTensor::Role::gradient, spec.name, spec.letters});
    }
    return tensors;
  }

  [[nodiscard]] std::optional<Work> work(const Point& point) const override {
    return visit_pass(point.pass, [&](auto pass) {
      return work_of<decltype(pass)>(problem_of(point), point.backend);
    });
  }

  [[nodiscard]] std::optional<PresetTile> preset(const Point& point, std::string_view variant,
                                                 std::string_view name) const override {
    const Problem problem = problem_of(point);
    return visit_pass(point.pass, [&](auto pass) {
      return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
        return find_preset(pass.template variants<Exec>(problem), exec,
                           shape_args<decltype(pass)>(problem), variant, name);
      });
    });
  }

  [[nodiscard]] Footprint footprint(const Point& point, const Config& config) const override {
    const Problem problem = problem_of(point);
    const auto bytes_of = [&](const TensorSpec& spec) {
      return spec.is_in(problem)
                 ? static_cast<std::size_t>(spec.size(problem)) * spec.element_bytes(problem)
                 : 0;
    };
    return visit_pass(point.pass, [&](auto pass) {
      Footprint bytes;
      for (const TensorSpec& spec : pass.outputs()) bytes.outputs += bytes_of(spec);
      for (const TensorSpec& spec : pass.inputs()) {
        const std::size_t device = bytes_of(spec);
        const std::size_t elements = device / spec.element_bytes(problem);
        const std::size_t on_host = is_integer(spec.element) ? 8 : spec.derived ? 0 : 4;
        bytes.tensors += device + elements * on_host;  // but for those that lie in an output
      }
      bytes.workspace =
          visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
            return pass.template variants<Exec>(problem).workspace_bytes(
                exec, shape_args<decltype(pass)>(problem), config);
          });
      return bytes;
    });
  }

  [[nodiscard]] std::unique_ptr<bench::Case> make_case(const Point& point) const override {
    return visit_pass(point.pass, [&](auto pass) -> std::unique_ptr<bench::Case> {
      return std::make_unique<Case<decltype(pass)>>(point);
    });
  }

  void run_file(const io::CaseFile& in, const RunOptions& options,
                io::TensorFile& out) const override {
    Problem problem = read_problem(in);
    const auto run = [&](auto pass) {
      using Pass = decltype(pass);
      const DeviceInputs<Op, Pass> inputs(problem, options.backend, options.threads);
      const DeviceOutputs<Op, Pass> outputs(problem, options.backend);
      const auto args = make_args(problem, inputs, outputs);
      visit_backend(options.backend, options.threads, [&]<class Exec>(const Exec& exec) {
        const auto& table = Pass::template variants<Exec>(problem);
        record_variant(out, table, run_variant(Op::name, exec, table, args, options.config),
                       Pass::backward);
      });
      HostValues made = outputs.download();
      for (const TensorSpec& spec : Pass::outputs()) {
        if (!spec.is_in(problem)) continue;
        if (spec.foreign) out.set(spec.name, {spec.shape(problem), made[spec.name]});
      }
      return made;
    };
    const TensorSpecs backward = Backward::inputs();
    const bool has_backward =
        in.has("dout") || std::none_of(backward.begin(), backward.end(),
                                       [](const auto& spec) { return spec.name == "dout"; });
    problem.values.merge(run(Forward{}));
    if (!has_backward) return;
    if constexpr (requires { Op::after_forward(problem); }) Op::after_forward(problem);
    problem.backward = true;
    for (const TensorSpec& spec : backward) read(in, spec, problem);
    (void)run(Backward{});
  }

 private:
  template <class F>
  static auto visit_pass(std::string_view pass, const F& f) {
    return pass == "backward" ? f(Backward{}) : f(Forward{});
  }

  static Problem problem_of(const Point& point) {
    Problem problem;
    problem.dtype = point.dtype;
    problem.backward = point.pass == "backward";
    if constexpr (requires { Op::parameters(); }) {
      for (const auto& [name, value] : Op::parameters()) problem.parameters[name] = value;
    }
    for (const AxisSpec& axis : Op::axes()) {
      const AxisValue& value = point.values.find(axis.name)->second;
      if (const auto* integer = std::get_if<std::int64_t>(&value)) {
        problem.extents[axis.name] = *integer;
      } else if (const auto* real = std::get_if<double>(&value)) {
        problem.parameters[axis.name] = *real;
      } else {
        problem.extents[axis.name] =
            std::find(axis.choices.begin(), axis.choices.end(), std::get<std::string>(value)) -
            axis.choices.begin();
      }
    }
    bench::complete<Op>(problem);
    return problem;
  }

  /// Reads an input of a file that the problem does not hold yet.
  static void read(const io::CaseFile& in, const TensorSpec& spec, Problem& problem) {
    if (spec.derived || problem.has(spec.name)) return;
    if (!spec.when.empty() && !in.has(spec.name)) {
      problem.extents[spec.when] = 0;
      return;
    }
    const auto shape = in.shape(spec.name, static_cast<int>(spec.axes.size()), spec.letters);
    std::vector<std::int64_t> wanted;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      wanted.push_back(problem.extents.emplace(spec.axes[i], shape[i]).first->second);
    }
    if (!spec.when.empty()) problem.extents.emplace(spec.when, 1);
    if (is_integer(spec.element)) {
      problem.integers[spec.name] = in.integers(spec.name, wanted, spec.letters).values;
    } else {
      problem.values[spec.name] = in.floats(spec.name, wanted, spec.letters).values;
    }
  }

  static Problem read_problem(const io::CaseFile& in) {
    Problem problem;
    problem.dtype = in.dtype();
    if constexpr (requires { Op::parameters(); }) {
      for (const auto& [name, value] : Op::parameters()) problem.parameters[name] = in.real(name);
    }
    for (const AxisSpec& axis : Op::axes()) {
      const auto* fallback = std::get_if<double>(&axis.fallback);
      if (fallback == nullptr) continue;
      const double value = in.real(axis.name, *fallback);
      if (!(value >= axis.minimum && value <= axis.maximum)) {
        in.reject(axis.name, "holds " + std::to_string(value) + ", expected " +
                                 std::to_string(axis.minimum) + " to " +
                                 std::to_string(axis.maximum));
      }
      problem.parameters[axis.name] = value;
    }
    for (const TensorSpec& spec : Forward::inputs()) read(in, spec, problem);
    if constexpr (requires { Op::read(in, problem); }) Op::read(in, problem);
    bench::complete<Op>(problem);
    return problem;
  }

  template <class Pass>
  static Work work_of(const Problem& problem, Backend backend) {
    const auto args = shape_args<Pass>(problem);
    if constexpr (requires { Op::work(problem, args, backend); }) {
      return Op::work(problem, args, backend);
    } else if constexpr (requires { Op::work(args, backend); }) {
      return Op::work(args, backend);
    } else if constexpr (Pass::backward) {
      return {backward_flops(args), backward_bytes(args), "", "copy"};
    } else {
      return {forward_flops(args), forward_bytes(args), "", "copy"};
    }
  }

  template <class Pass>
  static Status supports_of(const Problem& problem, Backend backend, int threads,
                            const Config& config) {
    if constexpr (requires { Op::supports(problem); }) {
      if (Status status = Op::supports(problem); !status.is_ok()) return status;
    }
    return visit_backend(backend, threads, [&]<class Exec>(const Exec& exec) {
      return Pass::template variants<Exec>(problem).supports(exec, shape_args<Pass>(problem),
                                                             config);
    });
  }

  template <class Pass>
  class Case final : public bench::Case {
   public:
    explicit Case(const Point& point)
        : problem_(generated(point)),
          inputs_(problem_, point.backend, point.threads),
          backend_(point.backend),
          threads_(point.threads) {}

    [[nodiscard]] Work work() const override { return work_of<Pass>(problem_, backend_); }

    [[nodiscard]] Status supports(const Config& config) const override {
      return supports_of<Pass>(problem_, backend_, threads_, config);
    }

    std::unique_ptr<Candidate> prepare(const Config& config) override {
      expect();
      return visit_backend(
          backend_, threads_, [&]<class Exec>(const Exec& exec) -> std::unique_ptr<Candidate> {
            using Outputs = DeviceOutputs<Op, Pass>;
            Outputs outputs(problem_, backend_);
            const auto args = make_args(problem_, inputs_, outputs);
            using Args = std::remove_const_t<decltype(args)>;
            return std::make_unique<VariantCandidate<Exec, Args, Outputs>>(
                "katt::" + std::string(Op::name) + "::workspace", exec,
                Pass::template variants<Exec>(problem_), args, config, std::move(outputs),
                [this](const Outputs& made) { return verify(made.download()); });
          });
    }

    std::optional<ForeignCase> foreign() override {
      if constexpr (requires { Op::is_foreign(problem_); }) {
        if (!Op::is_foreign(problem_)) return std::nullopt;
      }
      expect();
      ForeignCase foreign;
      foreign.parameters = {problem_.parameters.begin(), problem_.parameters.end()};
      for (const TensorSpec& spec : Pass::inputs()) {
        if (!add(foreign.inputs, spec)) continue;
        if (spec.derived) derived_[spec.name] = inputs_.download(spec.name);
        foreign.inputs.back().values =
            spec.derived ? std::span<const float>(derived_[spec.name]) : problem_.floats(spec.name);
        foreign.inputs.back().integers = problem_.indices(spec.name);
      }
      for (const TensorSpec& spec : Pass::outputs()) {
        if (spec.asked_of_peers) add(foreign.outputs, spec);
      }
      std::vector<std::string> names;
      for (const ForeignTensor& tensor : foreign.outputs) names.push_back(tensor.name);
      foreign.verify = [this, names](std::span<const std::vector<float>> outputs) {
        HostValues made;
        for (std::size_t i = 0; i < names.size(); ++i) made[names[i]] = outputs[i];
        return verify(made);
      };
      return foreign;
    }

   private:
    static Problem generated(const Point& point) {
      Problem problem = problem_of(point);
      generate(problem, Pass::inputs(), point.seed);
      return problem;
    }
    void expect() {
      if (expected_) return;
      expected_ = Op::expected(problem_);
    }
    [[nodiscard]] Errors verify(const HostValues& made) const {
      return bench::compare<Op, Pass>(problem_, *expected_, made);
    }
    /// Adds a tensor for another program, where it sees this one.
    bool add(std::vector<ForeignTensor>& tensors, const TensorSpec& spec) const {
      if (!spec.foreign || !spec.is_in(problem_)) return false;
      tensors.push_back(
          {.name = spec.name, .shape = spec.shape(problem_), .dtype = spec.dtype(problem_)});
      return true;
    }

    Problem problem_;
    DeviceInputs<Op, Pass> inputs_;
    std::optional<testing::Expected> expected_;
    HostValues derived_;  ///< of foreign()
    Backend backend_;
    int threads_;
  };
};

}  // namespace katt::bench

/// Makes katt::op::register_op(), which the program calls, from katt::op::Description.
#define KATT_REGISTER_OPERATOR(op)                                        \
  namespace katt::op {                                                    \
  void register_op(bench::Registry& registry) {                           \
    registry.add(std::make_unique<bench::TensorOperator<Description>>()); \
  }                                                                       \
  }
