#include <algorithm>

#include "memory/tracker.hpp"
#include "tests/ops/suite_checks.hpp"

namespace katt::testing {
namespace {

/// Elements of the largest input.
std::int64_t largest_input(const Problem& problem) {
  std::int64_t largest = 0;
  for (const auto& [name, values] : problem.values) largest = std::max(largest, std::ssize(values));
  return largest;
}

/// Σ out · dout of the exact outputs, whose gradients the backward pass has.
double objective(const bench::TensorOperatorData& op, const Problem& problem) {
  Problem forward = problem;
  forward.backward = false;
  double sum = 0;
  const Expected expected = op.expected(forward);
  for (const auto& value : expected.front().values) {
    sum += value.exact * problem.floats("dout")[static_cast<std::size_t>(value.index)];
  }
  return sum;
}

}  // namespace

Problem shape_problem(const bench::TensorOperatorData& op, bool backward, const Extents& extents,
                      Dtype dtype) {
  Problem problem = op.usual_problem(backward);
  problem.dtype = dtype;
  for (const auto& [axis, value] : extents) problem.extents[axis] = value;
  op.finish(problem);
  return problem;
}

Problem make_problem(const bench::TensorOperatorData& op, bool backward, const Extents& extents,
                     Dtype dtype, std::uint64_t seed) {
  Problem problem = shape_problem(op, backward, extents, dtype);
  bench::generate(problem, op.pass(backward).inputs, seed);
  return problem;
}

std::vector<std::string> variants_of(const bench::Pass& pass, Backend backend) {
  std::vector<std::string> names;
  for (const auto& variant : pass.variants(backend)) names.push_back(variant.name);
  return names;
}

std::optional<HostValues> outputs_of(const bench::TensorOperatorData& op, const bench::Pass& pass,
                                     Backend backend, int threads, const Problem& problem,
                                     const std::string& variant, std::int64_t gap,
                                     const std::vector<Taken>& taken, const Setting& setting) {
  if (op.supports && !op.supports(problem).is_ok()) return std::nullopt;
  const bench::DeviceInputs inputs(op.name, pass, problem, backend, op.derive_on(backend, 1), gap);
  const bench::DeviceOutputs outputs(op.name, pass, problem, backend, 2 * gap,
                                     inputs.of_variant(variant));
  outputs.poison();
  bench::Tensors refs(problem);
  inputs.add_to(refs);
  outputs.add_to(refs);
  for (const Taken& pair : taken) refs.set(pair.output, refs.tensor<4>(pair.input));
  pass.check(refs);
  const auto call = pass.decide(backend, threads, refs, {variant, setting});
  if (!call->status().is_ok()) return std::nullopt;
  const bench::Buffer workspace = poisoned_workspace(backend, call->workspace_bytes());
  call->launch(workspace.workspace());
  call->fence();
  HostValues made = outputs.download();
  EXPECT_TRUE(outputs.gaps_are_nan()) << variant << " wrote between rows";
  for (const Taken& pair : taken) made[pair.output] = inputs.download(pair.input);
  return made;
}

std::string text_of(const Problem& problem) {
  std::string text = std::string(name_of(problem.dtype)) + (problem.backward ? " backward" : "");
  for (const auto& [axis, value] : problem.extents) {
    text += ", " + axis + " " + std::to_string(value);
  }
  return text;
}

void expect_outputs(const bench::TensorOperatorData& op, const bench::Pass& pass,
                    const Problem& problem, const HostValues& made, const std::string& what,
                    double slack) {
  Expected expected = op.expected(problem);
  for (ExpectedPart& part : expected) part.slack += slack;
  const Errors errors = bench::compare(pass, problem, expected, made, op.compare);
  EXPECT_TRUE(errors.status.is_ok())
      << what << ", " << text_of(problem) << ": " << errors.status.reason();
}

void matches_the_reference(const SuiteCases& cases) {
  const bench::TensorOperatorData& op = cases.op;
  std::uint64_t seed = 0;
  for (const bool backward : {false, true}) {
    const bench::Pass& pass = op.pass(backward);
    for (const Dtype dtype : all_dtypes) {
      std::map<std::pair<std::string, Backend>, int> taken;  // by a variant
      for (const Extents& shape : cases.shapes) {
        const Problem problem = make_problem(op, backward, shape, dtype, ++seed);
        if (test::is_too_large(largest_input(problem))) continue;
        Expected expected = op.expected(problem);
        for (ExpectedPart& part : expected) part.slack += cases.slack;
        for (const std::int64_t gap : cases.gaps) {
          for_each_exec([&]<class Exec>(const Exec& exec) {
            constexpr Backend backend = backend_of<Exec>();
            for (const std::string& variant : variants_of(pass, backend)) {
              const auto made =
                  outputs_of(op, pass, backend, threads_of(exec), problem, variant, gap);
              if (!op.supports || op.supports(problem).is_ok()) {
                taken[{variant, backend}] += made ? 1 : 0;
              }
              if (!made) continue;
              const Errors errors = bench::compare(pass, problem, expected, *made, op.compare);
              ASSERT_TRUE(errors.status.is_ok()) << variant << ", " << text_of(problem) << ", gap "
                                                 << gap << ": " << errors.status.reason();
            }
          });
        }
      }
      for (const auto& [who, count] : taken) {
        EXPECT_TRUE(count > 0 || cases.may_refuse(who.first, who.second))
            << who.first << " on " << name_of(who.second) << " refuses every shape of "
            << name_of(dtype) << (backward ? " backward" : "");
      }
    }
  }
}

void has_the_gradients_of_finite_differences(const SuiteCases& cases) {
  if (!cases.has_gradient_check) return;
  // Few digits, so that a step is exact in f32.
  Problem problem = make_problem(cases.op, true, cases.shapes.front(), Dtype::bf16);
  problem.dtype = Dtype::f32;
  for (const ExpectedPart& part : cases.op.expected(problem)) {
    const auto input = problem.values.find(part.output.substr(1));  // d…
    ASSERT_NE(input, problem.values.end()) << part.output;
    ASSERT_EQ(part.values.size(), input->second.size()) << part.output << ": not every element";
    for (const ExpectedValue& value : part.values) {
      float& at = input->second[static_cast<std::size_t>(value.index)];
      const double slope = test::slope(at, 0x1p-10F, [&] { return objective(cases.op, problem); });
      EXPECT_NEAR(slope, value.exact, cases.gradient_tolerance)
          << part.output << "(" << value.index << ")";
    }
  }
}

void threads_do_not_change_a_bit(const SuiteCases& cases) {
  const Backend host = backend_of<Host>();
  for (const bool backward : {false, true}) {
    const bench::Pass& pass = cases.op.pass(backward);
    for (const Dtype dtype : all_dtypes) {
      const Problem problem = make_problem(cases.op, backward, cases.shapes.back(), dtype);
      for (const std::string& variant : variants_of(pass, host)) {
        if (cases.naive_is_blas && variant == "naive" && dtype == Dtype::f32) continue;
        const auto one =
            outputs_of(cases.op, pass, host, threads_of(serial_host()), problem, variant);
        if (!one) continue;
#if defined(KOKKOS_ENABLE_OPENMP)
        for (const int threads : {1, 2, 3}) {
          const auto more = outputs_of(cases.op, pass, Backend::openmp, threads, problem, variant);
          EXPECT_TRUE(*more == *one)
              << variant << " on " << threads << " threads, " << text_of(problem);
        }
#endif
      }
    }
  }
}

void an_output_may_be_an_input(const SuiteCases& cases) {
  for (const std::vector<Taken>& taken : cases.in_place) {
    for (const bool backward : {false, true}) {
      const bench::Pass& pass = cases.op.pass(backward);
      if (std::none_of(pass.outputs.begin(), pass.outputs.end(),
                       [&](const auto& spec) { return spec.name == taken.front().output; })) {
        continue;
      }
      for (const Dtype dtype : all_dtypes) {
        const Problem problem = make_problem(cases.op, backward, cases.shapes.back(), dtype);
        for_each_exec([&]<class Exec>(const Exec& exec) {
          constexpr Backend backend = backend_of<Exec>();
          const int threads = threads_of(exec);
          for (const std::string& variant : variants_of(pass, backend)) {
            const auto apart = outputs_of(cases.op, pass, backend, threads, problem, variant);
            if (!apart) continue;
            EXPECT_TRUE(*apart ==
                        *outputs_of(cases.op, pass, backend, threads, problem, variant, 0, taken))
                << variant << ", " << text_of(problem) << ": " << taken.front().output
                << " in place";
          }
        });
      }
    }
  }
}

void allocates_nothing_and_refuses(const SuiteCases& cases) {
  memory::install();
  const bench::TensorOperatorData& op = cases.op;
  constexpr Backend serial = Backend::serial;
  for (const bool backward : {false, true}) {
    const bench::Pass& pass = op.pass(backward);
    const Problem problem = make_problem(op, backward, cases.shapes.back(), Dtype::bf16);
    const bench::DeviceInputs inputs(op.name, pass, problem, serial, op.derive_on(serial, 1));
    const auto decide = [&](const bench::Tensors& tensors, const std::string& variant) {
      return pass.decide(backend_of<Host>(), threads_of(serial_host()), tensors, {variant, {}});
    };
    for (const std::string& variant : variants_of(pass, backend_of<Host>())) {
      const bench::DeviceOutputs outputs(op.name, pass, problem, serial, 0,
                                         inputs.of_variant(variant));
      const bench::Tensors tensors = bench::tensors_of(pass, problem, inputs, outputs);
      const auto call = decide(tensors, variant);
      if (!call->status().is_ok()) continue;
      const bench::Buffer workspace("workspace", serial, call->workspace_bytes());
      const memory::Scope scope;
      call->launch(workspace.workspace());
      EXPECT_EQ(scope.peak_bytes(), 0U) << variant;
    }
    const bench::Tensors shapes = bench::shapes_of(pass, problem);
    EXPECT_THROW((void)decide(shapes, "no such variant"), InputError);
  }
}

}  // namespace katt::testing
