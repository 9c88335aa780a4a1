#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/tracker.hpp"
#include "op/tensor_operator.hpp"
#include "tests/ops/matrix.hpp"
#include "tests/slope.hpp"
#include "tile/rows/stream.hpp"

/// Checks that hold for every operator with a description (OP/bench/description.hpp): a test writes
/// a struct of cases and instantiates the suite,
///
///   struct Cases : testing::SuiteDefaults {
///     using Op = Description;
///     static std::vector<testing::Extents> shapes() {
///       return testing::extents_of({"tokens", "hidden"}, {{3, 64}});
///     }
///   };
///   INSTANTIATE_TYPED_TEST_SUITE_P(Softmax, OperatorSuite, Cases);
///
/// The last shape is the one of the tests that need one only; the first is that of the finite
/// differences, so few elements.
namespace katt::testing {

/// Values of axes by name; axes that are not named have their defaults.
using Extents = std::map<std::string, std::int64_t>;

/// Extents of these axes, a set a row.
inline std::vector<Extents> extents_of(const std::vector<std::string>& axes,
                                       const std::vector<std::vector<std::int64_t>>& rows,
                                       const Extents& others = {}) {
  std::vector<Extents> all;
  for (const std::vector<std::int64_t>& row : rows) {
    Extents& made = all.emplace_back(others);
    for (std::size_t i = 0; i < axes.size(); ++i) made[axes[i]] = row[i];
  }
  return all;
}

/// An output that may be the memory of an input.
struct Taken {
  const char* output;
  const char* input;
};

struct SuiteDefaults {
  static std::vector<std::int64_t> gaps() { return {0, 3}; }
  /// Added to the limits of the error rule, which are narrow where all values are small.
  static constexpr double slack = 0;
  static constexpr bool has_gradient_check = true;
  /// True: OpenBLAS multiplies for naive in f32, and cuts long sums by the number of threads.
  static constexpr bool naive_is_blas = false;
  static constexpr double gradient_tolerance = 1e-5;
  /// Outputs in the memory of inputs, for either pass; each entry is a set that holds at once.
  static std::vector<std::vector<Taken>> in_place() { return {}; }
  /// Whether a variant may refuse all shapes on a backend. All others must take one in each pass and
  /// dtype: a variant that refuses everything fails.
  static bool may_refuse(std::string_view variant, Backend backend) {
    return variant == "stream" && (backend == Backend::cuda || !tile::can_stream_v<Host>);
  }
};

/// A pass of the description Op.
template <class Op, bool IsBackward>
struct PassOf {
  static constexpr bool backward = IsBackward;
  static const bench::Pass& data() { return bench::data_of<Op>().pass(IsBackward); }
};
template <class Op>
using Forward = PassOf<Op, false>;
template <class Op>
using Backward = PassOf<Op, true>;

/// A problem of a pass without values.
template <class Op, class Pass>
Problem shape_problem(const Extents& extents, Dtype dtype) {
  const bench::TensorOperatorData& op = bench::data_of<Op>();
  Problem problem = op.usual_problem(Pass::backward);
  problem.dtype = dtype;
  for (const auto& [axis, value] : extents) problem.extents[axis] = value;
  op.finish(problem);
  return problem;
}

/// A problem of a pass with seeded inputs.
template <class Op, class Pass>
Problem make_problem(const Extents& extents, Dtype dtype, std::uint64_t seed = 1) {
  Problem problem = shape_problem<Op, Pass>(extents, dtype);
  bench::generate(problem, Pass::data().inputs, seed);
  return problem;
}

/// The variants of a pass on the backend of an execution space.
template <class Pass, class Exec>
std::vector<std::string> variants_of(const Exec& /*exec*/) {
  std::vector<std::string> names;
  for (const auto& variant : Pass::data().variants(backend_of<Exec>()))
    names.push_back(variant.name);
  return names;
}

/// Threads of a host instance; 0 of a device's.
template <class Exec>
int threads_of(const Exec& exec) {
  return backend_of<Exec>() == Backend::cuda ? 0 : exec.concurrency();
}

/// A call of a pass, decided, on an instance like this one.
template <class Pass, class Exec>
std::unique_ptr<bench::DecidedCall> decide(const Exec& exec, const bench::Tensors& tensors,
                                           const Config& config) {
  return Pass::data().decide(backend_of<Exec>(), threads_of(exec), tensors, config);
}

/// Elements of the largest input.
inline std::int64_t largest_input(const Problem& problem) {
  std::int64_t largest = 0;
  for (const auto& [name, values] : problem.values) largest = std::max(largest, std::ssize(values));
  return largest;
}

/// Runs a variant of a pass and returns its outputs; nothing where it is refused here. Rows lie
/// further apart by `gap`; the outputs of `taken` have the memory of inputs.
template <class Op, class Pass, class Exec>
std::optional<HostValues> outputs_of(const Exec& exec, const Problem& problem,
                                     const std::string& variant, std::int64_t gap = 0,
                                     const std::vector<Taken>& taken = {}) {
  const bench::TensorOperatorData& op = bench::data_of<Op>();
  const bench::Pass& pass = Pass::data();
  if (op.supports && !op.supports(problem).is_ok()) return std::nullopt;
  constexpr Backend backend = backend_of<Exec>();
  const bench::DeviceInputs inputs(op.name, pass, problem, backend, op.derive_on(backend, 1), gap);
  const bench::DeviceOutputs outputs(op.name, pass, problem, backend, 2 * gap,
                                     inputs.of_variant(variant));
  outputs.poison();
  bench::Tensors refs(problem);
  inputs.add_to(refs);
  outputs.add_to(refs);
  for (const Taken& pair : taken) refs.set(pair.output, refs.tensor<4>(pair.input));
  pass.check(refs);
  const auto call = decide<Pass>(exec, refs, {variant, {}});
  if (!call->status().is_ok()) return std::nullopt;
  const bench::Buffer workspace = poisoned_workspace(backend, call->workspace_bytes());
  call->launch(workspace.workspace());
  call->fence();
  HostValues made = outputs.download();
  EXPECT_TRUE(outputs.gaps_are_nan()) << variant << " wrote between rows";
  for (const Taken& pair : taken) made[pair.output] = inputs.download(pair.input);
  return made;
}

/// Calls f(pass) for both passes.
template <class Op, class F>
void for_each_pass(const F& f) {
  f(Forward<Op>{});
  f(Backward<Op>{});
}

inline std::string text_of(const Problem& problem) {
  std::string text = std::string(name_of(problem.dtype)) + (problem.backward ? " backward" : "");
  for (const auto& [axis, value] : problem.extents) {
    text += ", " + axis + " " + std::to_string(value);
  }
  return text;
}

/// Holds the outputs of a pass against its reference.
template <class Op, class Pass>
void expect_outputs(const Problem& problem, const HostValues& made, const std::string& what,
                    double slack = 0) {
  Expected expected = Op::expected(problem);
  for (ExpectedPart& part : expected) part.slack += slack;
  const Errors errors =
      bench::compare(Pass::data(), problem, expected, made, bench::data_of<Op>().compare);
  EXPECT_TRUE(errors.status.is_ok())
      << what << ", " << text_of(problem) << ": " << errors.status.reason();
}

}  // namespace katt::testing

namespace katt {

template <class Cases>
class OperatorSuite : public ::testing::Test {};
TYPED_TEST_SUITE_P(OperatorSuite);

TYPED_TEST_P(OperatorSuite, MatchesTheReferenceForEveryShapeStrideVariantAndBackend) {
  using Op = typename TypeParam::Op;
  std::uint64_t seed = 0;
  testing::for_each_pass<Op>([&]<class Pass>(Pass) {
    for (const Dtype dtype : all_dtypes) {
      std::map<std::pair<std::string, Backend>, int> taken;  // by a variant
      for (const testing::Extents& shape : TypeParam::shapes()) {
        const auto problem = testing::make_problem<Op, Pass>(shape, dtype, ++seed);
        if (test::is_too_large(testing::largest_input(problem))) continue;
        auto expected = Op::expected(problem);
        for (testing::ExpectedPart& part : expected) part.slack += TypeParam::slack;
        for (const std::int64_t gap : TypeParam::gaps()) {
          testing::for_each_exec([&]<class Exec>(const Exec& exec) {
            for (const std::string& variant : testing::variants_of<Pass>(exec)) {
              const auto made = testing::outputs_of<Op, Pass>(exec, problem, variant, gap);
              const auto& supports = bench::data_of<Op>().supports;
              if (!supports || supports(problem).is_ok()) {
                taken[{variant, backend_of<Exec>()}] += made ? 1 : 0;
              }
              if (!made) continue;
              const auto errors = bench::compare(Pass::data(), problem, expected, *made,
                                                 bench::data_of<Op>().compare);
              ASSERT_TRUE(errors.status.is_ok())
                  << variant << ", " << testing::text_of(problem) << ", gap " << gap << ": "
                  << errors.status.reason();
            }
          });
        }
      }
      for (const auto& [who, count] : taken) {
        EXPECT_TRUE(count > 0 || TypeParam::may_refuse(who.first, who.second))
            << who.first << " on " << name_of(who.second) << " refuses every shape of "
            << name_of(dtype) << (Pass::backward ? " backward" : "");
      }
    }
  });
}

/// Σ out · dout of the exact outputs, whose gradients the backward pass has.
template <class Op>
double objective(const testing::Problem& problem) {
  testing::Problem forward = problem;
  forward.backward = false;
  double sum = 0;
  const testing::Expected expected = Op::expected(forward);
  for (const auto& value : expected.front().values) {
    sum += value.exact * problem.floats("dout")[static_cast<std::size_t>(value.index)];
  }
  return sum;
}

TYPED_TEST_P(OperatorSuite, GradientsOfTheReferenceAreThoseOfFiniteDifferences) {
  if constexpr (TypeParam::has_gradient_check) {
    using Op = typename TypeParam::Op;
    // Few digits, so that a step is exact in f32.
    auto problem =
        testing::make_problem<Op, testing::Backward<Op>>(TypeParam::shapes().front(), Dtype::bf16);
    problem.dtype = Dtype::f32;
    for (const testing::ExpectedPart& part : Op::expected(problem)) {
      const auto input = problem.values.find(part.output.substr(1));  // d…
      ASSERT_NE(input, problem.values.end()) << part.output;
      ASSERT_EQ(part.values.size(), input->second.size()) << part.output << ": not every element";
      for (const testing::ExpectedValue& value : part.values) {
        float& at = input->second[static_cast<std::size_t>(value.index)];
        const double slope = test::slope(at, 0x1p-10F, [&] { return objective<Op>(problem); });
        EXPECT_NEAR(slope, value.exact, TypeParam::gradient_tolerance)
            << part.output << "(" << value.index << ")";
      }
    }
  }
}

TYPED_TEST_P(OperatorSuite, ThreadsDoNotChangeABit) {
  using Op = typename TypeParam::Op;
  testing::for_each_pass<Op>([&]<class Pass>(Pass) {
    for (const Dtype dtype : all_dtypes) {
      const auto problem = testing::make_problem<Op, Pass>(TypeParam::shapes().back(), dtype);
      for (const std::string& variant : testing::variants_of<Pass>(serial_host())) {
        if (TypeParam::naive_is_blas && variant == "naive" && dtype == Dtype::f32) continue;
        const auto one = testing::outputs_of<Op, Pass>(serial_host(), problem, variant);
        if (!one) continue;
#if defined(KOKKOS_ENABLE_OPENMP)
        for (const int threads : {1, 2, 3}) {
          const auto more =
              testing::outputs_of<Op, Pass>(Kokkos::OpenMP(threads), problem, variant);
          EXPECT_TRUE(*more == *one)
              << variant << " on " << threads << " threads, " << testing::text_of(problem);
        }
#endif
      }
    }
  });
}

TYPED_TEST_P(OperatorSuite, AnOutputMayBeAnInput) {
  using Op = typename TypeParam::Op;
  for (const std::vector<testing::Taken>& taken : TypeParam::in_place()) {
    testing::for_each_pass<Op>([&]<class Pass>(Pass) {
      const bench::TensorSpecs& outputs = Pass::data().outputs;
      if (std::none_of(outputs.begin(), outputs.end(),
                       [&](const auto& spec) { return spec.name == taken.front().output; })) {
        return;
      }
      for (const Dtype dtype : all_dtypes) {
        const auto problem = testing::make_problem<Op, Pass>(TypeParam::shapes().back(), dtype);
        testing::for_each_exec([&]<class Exec>(const Exec& exec) {
          for (const std::string& variant : testing::variants_of<Pass>(exec)) {
            const auto apart = testing::outputs_of<Op, Pass>(exec, problem, variant);
            if (!apart) continue;
            EXPECT_TRUE(*apart ==
                        *(testing::outputs_of<Op, Pass>(exec, problem, variant, 0, taken)))
                << variant << ", " << testing::text_of(problem) << ": " << taken.front().output
                << " in place";
          }
        });
      }
    });
  }
}

TYPED_TEST_P(OperatorSuite, AllocatesNothingAndRefusesWhatItDoesNotKnow) {
  using Op = typename TypeParam::Op;
  memory::install();
  const Host exec = serial_host();
  testing::for_each_pass<Op>([&]<class Pass>(Pass) {
    const auto problem = testing::make_problem<Op, Pass>(TypeParam::shapes().back(), Dtype::bf16);
    const bench::TensorOperatorData& op = bench::data_of<Op>();
    const bench::DeviceInputs inputs(op.name, Pass::data(), problem, Backend::serial,
                                     op.derive_on(Backend::serial, 1));
    for (const std::string& variant : testing::variants_of<Pass>(exec)) {
      const bench::DeviceOutputs outputs(op.name, Pass::data(), problem, Backend::serial, 0,
                                         inputs.of_variant(variant));
      const bench::Tensors tensors = bench::tensors_of(Pass::data(), problem, inputs, outputs);
      const auto call = testing::decide<Pass>(exec, tensors, {variant, {}});
      if (!call->status().is_ok()) continue;
      const bench::Buffer workspace("workspace", Backend::serial, call->workspace_bytes());
      const memory::Scope scope;
      call->launch(workspace.workspace());
      EXPECT_EQ(scope.peak_bytes(), 0U) << variant;
    }
    const bench::Tensors shapes = bench::shapes_of(Pass::data(), problem);
    EXPECT_THROW((void)testing::decide<Pass>(exec, shapes, {"no such variant", {}}), InputError);
  });
}

REGISTER_TYPED_TEST_SUITE_P(OperatorSuite, MatchesTheReferenceForEveryShapeStrideVariantAndBackend,
                            GradientsOfTheReferenceAreThoseOfFiniteDifferences,
                            ThreadsDoNotChangeABit, AnOutputMayBeAnInput,
                            AllocatesNothingAndRefusesWhatItDoesNotKnow);

}  // namespace katt
