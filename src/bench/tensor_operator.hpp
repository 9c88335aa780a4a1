#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/adapter.hpp"
#include "bench/candidate.hpp"
#include "bench/registry.hpp"
#include "bench/tensors.hpp"
#include "io/case_file.hpp"
#include "testing/compare.hpp"
#include "testing/expected.hpp"

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
///                                     or backward_…, held against the copy bandwidth
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

/// A pass of an operator: what it reads and writes, by its description.
template <class Op>
struct ForwardPass {
  static constexpr bool backward = false;
  static TensorSpecs inputs() { return Op::inputs(); }
  static TensorSpecs outputs() { return Op::outputs(); }
  static auto args(const Tensors& tensors) { return Op::forward_args(tensors); }
  template <class Exec>
  static auto& variants() {
    return Op::template forward_variants<Exec>();
  }
};

template <class Op>
struct BackwardPass {
  static constexpr bool backward = true;
  static TensorSpecs inputs() {
    if constexpr (requires { Op::backward_inputs(); }) {
      return Op::backward_inputs();
    } else {
      TensorSpecs specs = Op::inputs();
      specs.push_back(Op::outputs().front());
      specs.back().name = "dout";
      return specs;
    }
  }
  static TensorSpecs outputs() { return Op::gradients(); }
  static auto args(const Tensors& tensors) { return Op::backward_args(tensors); }
  template <class Exec>
  static auto& variants() {
    return Op::template backward_variants<Exec>();
  }
};

/// Adds what an operator's description says of every problem.
template <class Op>
void complete(Problem& problem) {
  if constexpr (requires { Op::complete(problem); }) Op::complete(problem);
}

/// The inputs of a pass in the memory of a backend, and what is derived of them. In place the
/// outputs hold the inputs that they take the memory of.
template <class Op, class Pass>
class DeviceInputs {
 public:
  DeviceInputs(const Problem& problem, Backend backend, int threads, std::int64_t gap = 0)
      : tensors_(Op::name, backend, own_inputs(problem), problem, gap) {
    tensors_.upload(problem);
    if constexpr (requires { Op::derive(serial_host(), std::declval<const Tensors&>()); }) {
      const TensorSpecs specs = Pass::inputs();
      if (std::none_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
            return spec.derived && spec.is_in(problem) && !problem.has(spec.name);
          })) {
        return;
      }
      Tensors refs(problem);
      tensors_.add_to(refs);
      visit_backend(backend, threads, [&]<class Exec>(const Exec& exec) {
        Op::derive(exec, refs);
        exec.fence("katt::bench::derive");
      });
    }
  }
  void add_to(Tensors& refs) const { tensors_.add_to(refs); }
  [[nodiscard]] std::vector<float> download(std::string_view name) const {
    return tensors_.download(name);
  }

  static bool in_place(const Problem& problem) { return problem.extent("in_place") != 0; }

 private:
  static TensorSpecs own_inputs(const Problem& problem) {
    TensorSpecs inputs = Pass::inputs();
    if (!in_place(problem)) return inputs;
    const TensorSpecs outputs = Pass::outputs();
    std::erase_if(inputs, [&](const TensorSpec& input) {
      return std::any_of(outputs.begin(), outputs.end(),
                         [&](const TensorSpec& output) { return output.over == input.name; });
    });
    return inputs;
  }

  DeviceTensors tensors_;
};

/// The outputs of one run of a pass in the memory of a backend.
template <class Op, class Pass>
class DeviceOutputs {
 public:
  DeviceOutputs(const Problem& problem, Backend backend, std::int64_t gap = 0)
      : problem_(&problem), tensors_(Op::name, backend, Pass::outputs(), problem, gap) {}

  /// Points the outputs of a pass here, in place its inputs too.
  void add_to(Tensors& refs) const {
    tensors_.add_to(refs);
    for_each_taken([&](const TensorSpec& output) {
      refs.set(output.over, refs.template tensor<4>(output.name));
    });
  }
  /// NaN, or in place the inputs.
  void poison() const {
    tensors_.poison();
    for_each_taken([&](const TensorSpec& output) {
      tensors_.upload(output.name, problem_->floats(output.over));
    });
  }
  [[nodiscard]] HostValues download() const { return tensors_.download(); }
  [[nodiscard]] bool gaps_are_nan() const { return tensors_.gaps_are_nan(); }

 private:
  template <class F>
  void for_each_taken(const F& f) const {
    if (!DeviceInputs<Op, Pass>::in_place(*problem_)) return;
    for (const TensorSpec& output : Pass::outputs()) {
      if (!output.over.empty() && output.is_in(*problem_)) f(output);
    }
  }

  const Problem* problem_;
  DeviceTensors tensors_;
};

/// The arguments of a pass without memory; of tensors that share some, in place, the address is
/// the same.
template <class Pass>
auto shape_args(const Problem& problem) {
  Tensors tensors(problem);
  add_shapes(tensors, Pass::inputs(), problem);
  add_shapes(tensors, Pass::outputs(), problem);
  static std::byte shared;
  for (const TensorSpec& output : Pass::outputs()) {
    if (problem.extent("in_place") == 0 || output.over.empty() || !output.is_in(problem)) continue;
    for (const std::string& name : {output.name, output.over}) {
      TensorRef<4> ref = tensors.tensor<4>(name);
      ref.data = &shared;
      tensors.set(name, ref);
    }
  }
  return Pass::args(tensors);
}

/// The arguments of a pass on these tensors, checked.
template <class Op, class Pass>
auto make_args(const Problem& problem, const DeviceInputs<Op, Pass>& inputs,
               const DeviceOutputs<Op, Pass>& outputs) {
  Tensors tensors(problem);
  inputs.add_to(tensors);
  outputs.add_to(tensors);
  const auto args = Pass::args(tensors);
  check(args);
  return args;
}

/// Holds outputs against what is expected of them. An output that is not among them is not checked.
template <class Op, class Pass>
Errors compare(const Problem& problem, const testing::Expected& expected, const HostValues& made) {
  testing::Comparison reported;
  testing::Comparison unreported;
  const TensorSpecs outputs = Pass::outputs();
  for (const testing::ExpectedPart& part : expected) {
    const auto spec = std::find_if(outputs.begin(), outputs.end(), [&](const TensorSpec& output) {
      return output.name == part.output;
    });
    if (const auto got = made.find(part.output); got != made.end()) {
      testing::add_all(part.unreported ? unreported : reported, part, got->second,
                       spec->shape(problem), problem.dtype);
    }
  }
  if constexpr (requires { Op::compare(problem, expected, made, reported, unreported); }) {
    Op::compare(problem, expected, made, reported, unreported);
  }
  Errors errors = reported.result();
  if (errors.status.is_ok()) errors.status = unreported.result().status;
  return errors;
}

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
      return visit_pass(pass, [](auto p) { return describe(p.template variants<Exec>()); });
    });
  }

  [[nodiscard]] Config resolve(const Point& point, const Config& config) const override {
    const Problem problem = problem_of(point);
    return visit_pass(point.pass, [&](auto pass) {
      return visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
        return pass.template variants<Exec>().resolve(exec, shape_args<decltype(pass)>(problem),
                                                      config);
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
        const std::size_t on_host = spec.element == Element::i64 ? 8 : spec.derived ? 0 : 4;
        bytes.tensors += device + elements * on_host;  // but for those that lie in an output
      }
      bytes.workspace =
          visit_backend(point.backend, point.threads, [&]<class Exec>(const Exec& exec) {
            return pass.template variants<Exec>().workspace_bytes(
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
        const auto& table = Pass::template variants<Exec>();
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
    if (spec.element == Element::i64) {
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
  class Case final : public bench::Case {
   public:
    explicit Case(const Point& point)
        : problem_(generated(point)),
          inputs_(problem_, point.backend, point.threads),
          backend_(point.backend),
          threads_(point.threads) {}

    [[nodiscard]] Work work() const override {
      const auto args = shape_args<Pass>(problem_);
      if constexpr (requires { Op::work(args, backend_); }) {
        return Op::work(args, backend_);
      } else if constexpr (Pass::backward) {
        return {backward_flops(args), backward_bytes(args), "", "copy"};
      } else {
        return {forward_flops(args), forward_bytes(args), "", "copy"};
      }
    }

    [[nodiscard]] Status supports(const Config& config) const override {
      if constexpr (requires { Op::supports(problem_); }) {
        if (Status status = Op::supports(problem_); !status.is_ok()) return status;
      }
      return visit_backend(backend_, threads_, [&]<class Exec>(const Exec& exec) {
        return Pass::template variants<Exec>().supports(exec, shape_args<Pass>(problem_), config);
      });
    }

    std::unique_ptr<Candidate> prepare(const Config& config) override {
      expect();
      return visit_backend(backend_, threads_,
                           [&]<class Exec>(const Exec& exec) -> std::unique_ptr<Candidate> {
                             using Outputs = DeviceOutputs<Op, Pass>;
                             Outputs outputs(problem_, backend_);
                             const auto args = make_args(problem_, inputs_, outputs);
                             using Args = std::remove_const_t<decltype(args)>;
                             return std::make_unique<VariantCandidate<Exec, Args, Outputs>>(
                                 "katt::" + std::string(Op::name) + "::workspace", exec,
                                 Pass::template variants<Exec>(), args, config, std::move(outputs),
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
      for (const TensorSpec& spec : Pass::outputs()) add(foreign.outputs, spec);
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
