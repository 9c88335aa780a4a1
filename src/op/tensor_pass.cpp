#include "op/tensor_pass.hpp"

#include <algorithm>
#include <utility>

namespace katt::bench {
namespace {

bool in_place(const Problem& problem) { return problem.extent("in_place") != 0; }

/// Calls f(output) for the outputs that take the memory of an input.
template <class F>
void each_taken(const Pass& pass, const Problem& problem, const F& f) {
  if (!in_place(problem)) return;
  for (const TensorSpec& output : pass.outputs) {
    if (!output.over.empty() && output.is_in(problem)) f(output);
  }
}

/// Inputs of the arguments with memory of their own.
TensorSpecs held_inputs(const Pass& pass, const Problem& problem) {
  TensorSpecs inputs = pass.inputs;
  std::erase_if(inputs, [](const TensorSpec& input) { return !input.held; });
  each_taken(pass, problem, [&](const TensorSpec& output) {
    std::erase_if(inputs, [&](const TensorSpec& input) { return input.name == output.over; });
  });
  return inputs;
}

/// Inputs that a variant alone reads; of "auto" those of every variant.
TensorSpecs own_of(const Pass& pass, std::string_view variant) {
  TensorSpecs own = pass.own;
  std::erase_if(own, [&](const TensorSpec& spec) {
    return variant != auto_variant && spec.variant != variant;
  });
  return own;
}

}  // namespace

DeviceInputs::DeviceInputs(std::string_view op, const Pass& pass, const Problem& problem,
                           Backend backend, Derive derive, std::int64_t gap)
    : op_(op),
      pass_(&pass),
      problem_(&problem),
      backend_(backend),
      derive_(std::move(derive)),
      gap_(gap) {
  tensors_ = filled(held_inputs(pass, problem));
}

DeviceTensors DeviceInputs::of_variant(std::string_view variant) const {
  return filled(own_of(*pass_, variant));
}

void DeviceInputs::renew() const { fill(tensors_, held_inputs(*pass_, *problem_)); }

void DeviceInputs::renew(const DeviceTensors& own, std::string_view variant) const {
  fill(own, own_of(*pass_, variant));
}

DeviceTensors DeviceInputs::filled(const TensorSpecs& specs) const {
  DeviceTensors made(op_, backend_, specs, *problem_, gap_);
  fill(made, specs);
  return made;
}

void DeviceInputs::fill(const DeviceTensors& made, const TensorSpecs& specs) const {
  made.upload(*problem_);
  const auto is_missing = [&](const TensorSpec& spec) {
    return spec.derived && spec.is_in(*problem_) && !problem_->has(spec.name);
  };
  if (!derive_ || std::none_of(specs.begin(), specs.end(), is_missing)) return;
  TensorSpecs sources = pass_->inputs;
  std::erase_if(sources, [](const TensorSpec& spec) { return spec.held || spec.derived; });
  const DeviceTensors read(op_, backend_, sources, *problem_, gap_);
  read.upload(*problem_);
  Tensors tensors(*problem_);
  read.add_to(tensors);
  tensors_.add_to(tensors);
  made.add_to(tensors);
  derive_(tensors);
}

void DeviceOutputs::add_to(Tensors& tensors) const {
  own_.add_to(tensors);
  tensors_.add_to(tensors);
  each_taken(*pass_, *problem_, [&](const TensorSpec& output) {
    tensors.set(output.over, tensors.tensor<4>(output.name));
  });
}

void DeviceOutputs::poison() const {
  tensors_.poison();
  renew();
}

void DeviceOutputs::renew() const {
  each_taken(*pass_, *problem_, [&](const TensorSpec& output) {
    tensors_.upload(output.name, problem_->floats(output.over));
  });
}

Tensors shapes_of(const Pass& pass, const Problem& problem, std::string_view variant) {
  Tensors tensors(problem);
  add_shapes(tensors, pass.inputs, problem);
  add_shapes(tensors, own_of(pass, variant), problem);
  add_shapes(tensors, pass.outputs, problem);
  each_taken(pass, problem, [&](const TensorSpec& output) {
    TensorRef<4> ref = tensors.tensor<4>(output.over);
    ref.data = tensors.tensor<4>(output.name).data;
    tensors.set(output.over, ref);
  });
  return tensors;
}

Tensors tensors_of(const Pass& pass, const Problem& problem, const DeviceInputs& inputs,
                   const DeviceOutputs& outputs) {
  Tensors tensors(problem);
  inputs.add_to(tensors);
  outputs.add_to(tensors);
  pass.check(tensors);
  return tensors;
}

Errors compare(const Pass& pass, const Problem& problem, const testing::Expected& expected,
               const HostValues& made, const Compare& more) {
  testing::Comparison reported;
  testing::Comparison unreported;
  for (const testing::ExpectedPart& part : expected) {
    const auto spec =
        std::find_if(pass.outputs.begin(), pass.outputs.end(),
                     [&](const TensorSpec& output) { return output.name == part.output; });
    if (const auto got = made.find(part.output); got != made.end()) {
      testing::add_all(part.unreported ? unreported : reported, part, got->second,
                       spec->shape(problem), problem.dtype);
    }
  }
  if (more) more(problem, expected, made, reported, unreported);
  Errors errors = reported.result();
  if (errors.status.is_ok()) errors.status = unreported.result().status;
  return errors;
}

}  // namespace katt::bench
