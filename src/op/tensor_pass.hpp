#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/execution.hpp"
#include "op/reference/compare.hpp"
#include "op/reference/expected.hpp"
#include "op/tensors.hpp"

/// The two passes of an operator with a description (op/tensor_operator.hpp) on the tensors of a
/// backend, for sweeps and tests.
namespace katt::bench {

/// A pass of an operator: what it reads and writes, by its description.
template <class Op>
struct ForwardPass {
  static constexpr bool backward = false;
  static TensorSpecs inputs() { return Op::inputs(); }
  static TensorSpecs outputs() { return Op::outputs(); }
  static auto args(const Tensors& tensors) { return Op::forward_args(tensors); }
  template <class Exec>
  static const auto& variants(const Problem& problem) {
    if constexpr (requires { Op::template forward_variants<Exec>(problem); }) {
      return Op::template forward_variants<Exec>(problem);
    } else {
      return Op::template forward_variants<Exec>();
    }
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
  static const auto& variants(const Problem& problem) {
    if constexpr (requires { Op::template backward_variants<Exec>(problem); }) {
      return Op::template backward_variants<Exec>(problem);
    } else {
      return Op::template backward_variants<Exec>();
    }
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

/// The arguments of a pass for workspace sizes, refusals and work; of tensors that share memory, in
/// place, the address is the same.
template <class Pass>
auto shape_args(const Problem& problem) {
  Tensors tensors(problem);
  add_shapes(tensors, Pass::inputs(), problem);
  add_shapes(tensors, Pass::outputs(), problem);
  for (const TensorSpec& output : Pass::outputs()) {
    if (problem.extent("in_place") == 0 || output.over.empty() || !output.is_in(problem)) continue;
    TensorRef<4> ref = tensors.tensor<4>(output.over);
    ref.data = tensors.tensor<4>(output.name).data;
    tensors.set(output.over, ref);
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

}  // namespace katt::bench
