#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/execution.hpp"
#include "op/matrix_ceiling.hpp"
#include "op/tensor_operator.hpp"

/// An operator of tensors as sweeps, `katt run`, bindings and the tests see it, made from a
/// description. A description Op has the static members
///
///   KATT_PASSES_OF(NAME)              its name, schemas and tables of variants
///   summary                           a text
///   axes()                            the axes of a sweep; a real one is an attribute of a case file
///   expected(Problem)                 a sample of every output
///
/// and, where it needs them,
///
///   work(args, backend)               of either pass; else forward_flops(args), forward_bytes(args)
///   or work(problem, args, backend)   or backward_…, held against the copy bandwidth
///   is_product = true                 or against the peak of matrix products and the read bandwidth
///   forward_variants<Exec>(Problem)   and backward_…: the tables, where they depend on the problem
///   complete(Problem&)                adds extents that follow from others
///   derive(exec, Tensors)             fills the derived inputs that it finds
///   bind(args&, Tensors)              sets members of the arguments that are no tensor
///   compare(Problem, Expected, HostValues, Comparison& reported, Comparison& unreported)
///                                     checks of outputs that expected() cannot say
///   validate(Problem)                 throws InputError for a point that makes no sense
///   supports(Problem)                 a Status for what no variant can run
///   is_foreign(Problem)               whether another program could compute it
///   read(CaseFile, Problem&)          reads further attributes of a file, refuses what it holds
///   add_rule(path)                    adds what a file describes to the values of an axis
///   rule_file(Problem)                that file, if the problem has such a value; empty: one in C++
namespace katt::bench {

namespace impl {

template <class Op, bool Backward>
Pass make_pass() {
  using Typed = op::TypedPass<Op, Backward>;
  using Args = typename Typed::Args;
  static constexpr auto args_of = [](const Tensors& tensors) {
    Args args = arguments<Typed::schema, Args>(tensors);
    if constexpr (requires { Op::bind(args, tensors); }) Op::bind(args, tensors);
    return args;
  };
  Pass pass;
  pass.backward = Backward;
  for (const TensorSpec& spec : specs<Typed::schema, Args>(false)) {
    (spec.variant.empty() ? pass.inputs : pass.own).push_back(spec);
  }
  pass.outputs = specs<Typed::schema, Args>(true);
  pass.variants = [](Backend backend) {  // no instance: Kokkos may not be initialised
#if defined(KATT_HAS_CUDA)
    if (backend == Backend::cuda) {
      return describe(Typed::template table<Kokkos::Cuda>(Problem{}));
    }
#endif
    if (!is_built(backend)) {
      throw InputError("--backend " + std::string(name_of(backend)) +
                       ": this build does not contain it");
    }
    return describe(Typed::template table<Host>(Problem{}));
  };
  pass.decide = [](Backend backend, int threads, const Tensors& tensors, const Config& config) {
    return visit_backend(
        backend, threads, [&]<class Exec>(const Exec& exec) -> std::unique_ptr<DecidedCall> {
          return std::make_unique<DecidedCallOf<Exec, Args>>(
              exec, Typed::template table<Exec>(tensors.problem()), args_of(tensors), config);
        });
  };
  pass.check = [](const Tensors& tensors) { check(args_of(tensors)); };
  pass.preset = [](Backend backend, int threads, const Tensors& tensors, std::string_view variant,
                   std::string_view name) {
    return visit_backend(backend, threads, [&]<class Exec>(const Exec& exec) {
      return find_preset(Typed::template table<Exec>(tensors.problem()), exec, args_of(tensors),
                         variant, name);
    });
  };
  pass.work = [](const Tensors& tensors, Backend backend) -> Work {
    const Args args = args_of(tensors);
    const Problem& problem = tensors.problem();
    if constexpr (requires { Op::work(problem, args, backend); }) {
      return Op::work(problem, args, backend);
    } else if constexpr (requires { Op::work(args, backend); }) {
      return Op::work(args, backend);
    } else {
      Work work{.compute_ceiling = "", .traffic = "copy"};
      if constexpr (requires { Op::is_product; }) {
        work = {.compute_ceiling = matrix_ceiling(backend, problem.dtype)};
      }
      if constexpr (Backward) {
        work.flops = backward_flops(args);
        work.bytes = backward_bytes(args);
      } else {
        work.flops = forward_flops(args);
        work.bytes = forward_bytes(args);
      }
      return work;
    }
  };
  return pass;
}

}  // namespace impl

template <class Op>
const TensorOperatorData& data_of() {
  static const TensorOperatorData made = [] {
    TensorOperatorData data;
    data.name = Op::name;
    data.summary = Op::summary;
    data.axes = Op::axes;
    data.parameters = parameters<Op::forward_schema, typename Op::ForwardArgs>(Op::axes());
    data.forward = impl::make_pass<Op, false>();
    data.backward = impl::make_pass<Op, true>();
    data.expected = Op::expected;
    if constexpr (requires(Problem & p) { Op::complete(p); }) data.complete = Op::complete;
    if constexpr (requires(const Tensors& t) { Op::derive(serial_host(), t); }) {
      data.derive = [](Backend backend, int threads, const Tensors& tensors) {
        visit_backend(backend, threads, [&](const auto& exec) {
          Op::derive(exec, tensors);
          exec.fence("katt::bench::derive");
        });
      };
    }
    if constexpr (requires { &Op::compare; }) data.compare = Op::compare;
    if constexpr (requires { &Op::validate; }) data.validate = Op::validate;
    if constexpr (requires { &Op::supports; }) data.supports = Op::supports;
    if constexpr (requires { &Op::is_foreign; }) data.is_foreign = Op::is_foreign;
    if constexpr (requires { &Op::read; }) data.read = Op::read;
    if constexpr (requires { &Op::add_rule; }) data.add_rule = Op::add_rule;
    if constexpr (requires { &Op::rule_file; }) data.rule_file = Op::rule_file;
    return data;
  }();
  return made;
}

}  // namespace katt::bench

/// Makes katt::NAME::register_op(), which the program calls, from katt::NAME::Description.
#define KATT_REGISTER_OPERATOR(NAME)                                          \
  namespace katt::bench {                                                     \
  template const TensorOperatorData& data_of<katt::NAME::Description>();      \
  }                                                                           \
  namespace katt::NAME {                                                      \
  void register_op(bench::Registry& registry) {                               \
    registry.add(bench::make_tensor_operator(bench::data_of<Description>())); \
  }                                                                           \
  }
