#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/execution.hpp"
#include "op/tensor_operator.hpp"
#include "tests/ops/matrix.hpp"
#include "tests/slope.hpp"
#include "tile/rows/stream.hpp"

/// The suite of operators (tests/ops/suite.hpp) without its tests: what their descriptions and cases are as data, and
/// the checks, compiled once (suite.cpp).
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
[[nodiscard]] Problem shape_problem(const bench::TensorOperatorData& op, bool backward,
                                    const Extents& extents, Dtype dtype);
template <class Op, class Pass>
Problem shape_problem(const Extents& extents, Dtype dtype) {
  return shape_problem(bench::data_of<Op>(), Pass::backward, extents, dtype);
}

/// A problem of a pass with seeded inputs.
[[nodiscard]] Problem make_problem(const bench::TensorOperatorData& op, bool backward,
                                   const Extents& extents, Dtype dtype, std::uint64_t seed = 1);
template <class Op, class Pass>
Problem make_problem(const Extents& extents, Dtype dtype, std::uint64_t seed = 1) {
  return make_problem(bench::data_of<Op>(), Pass::backward, extents, dtype, seed);
}

/// The variants of a pass on a backend.
[[nodiscard]] std::vector<std::string> variants_of(const bench::Pass& pass, Backend backend);
template <class Pass, class Exec>
std::vector<std::string> variants_of(const Exec& /*exec*/) {
  return variants_of(Pass::data(), backend_of<Exec>());
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

/// Runs a variant of a pass and returns its outputs; nothing where it is refused here. Rows lie
/// further apart by `gap`; the outputs of `taken` have the memory of inputs.
[[nodiscard]] std::optional<HostValues> outputs_of(const bench::TensorOperatorData& op,
                                                   const bench::Pass& pass, Backend backend,
                                                   int threads, const Problem& problem,
                                                   const std::string& variant, std::int64_t gap = 0,
                                                   const std::vector<Taken>& taken = {},
                                                   const Setting& setting = {});
template <class Op, class Pass, class Exec>
std::optional<HostValues> outputs_of(const Exec& exec, const Problem& problem,
                                     const std::string& variant, std::int64_t gap = 0,
                                     const std::vector<Taken>& taken = {},
                                     const Setting& setting = {}) {
  return outputs_of(bench::data_of<Op>(), Pass::data(), backend_of<Exec>(), threads_of(exec),
                    problem, variant, gap, taken, setting);
}

/// The output `out`, or `dx` of the backward pass, by a variant on the default execution space.
template <class Op>
std::vector<float> out_of(const Problem& problem, const char* variant = "fused") {
  const Kokkos::DefaultExecutionSpace exec;
  return problem.backward ? outputs_of<Op, Backward<Op>>(exec, problem, variant)->at("dx")
                          : outputs_of<Op, Forward<Op>>(exec, problem, variant)->at("out");
}

/// Calls f(pass) for both passes.
template <class Op, class F>
void for_each_pass(const F& f) {
  f(Forward<Op>{});
  f(Backward<Op>{});
}

[[nodiscard]] std::string text_of(const Problem& problem);

/// Holds the outputs of a pass against its reference.
void expect_outputs(const bench::TensorOperatorData& op, const bench::Pass& pass,
                    const Problem& problem, const HostValues& made, const std::string& what,
                    double slack = 0);
template <class Op, class Pass>
void expect_outputs(const Problem& problem, const HostValues& made, const std::string& what,
                    double slack = 0) {
  expect_outputs(bench::data_of<Op>(), Pass::data(), problem, made, what, slack);
}

/// The cases of a suite as data.
struct SuiteCases {
  const bench::TensorOperatorData& op;
  std::vector<Extents> shapes;
  std::vector<std::int64_t> gaps;
  std::vector<std::vector<Taken>> in_place;
  double slack, gradient_tolerance;
  bool has_gradient_check, naive_is_blas;
  bool (*may_refuse)(std::string_view variant, Backend backend);
};
template <class Cases>
SuiteCases cases_of() {
  return {.op = bench::data_of<typename Cases::Op>(),
          .shapes = Cases::shapes(),
          .gaps = Cases::gaps(),
          .in_place = Cases::in_place(),
          .slack = Cases::slack,
          .gradient_tolerance = Cases::gradient_tolerance,
          .has_gradient_check = Cases::has_gradient_check,
          .naive_is_blas = Cases::naive_is_blas,
          .may_refuse = Cases::may_refuse};
}
void matches_the_reference(const SuiteCases& cases);
void has_the_gradients_of_finite_differences(const SuiteCases& cases);
void threads_do_not_change_a_bit(const SuiteCases& cases);
void an_output_may_be_an_input(const SuiteCases& cases);
void allocates_nothing_and_refuses(const SuiteCases& cases);

}  // namespace katt::testing
