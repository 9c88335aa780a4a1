#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "memory/tracker.hpp"
#include "ops/swiglu_mlp/swiglu_mlp.hpp"
#include "ops/swiglu_mlp/swiglu_mlp_ref.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/linear_problem.hpp"

namespace katt::swiglu_mlp {
namespace {

using testing::ExpectedValue;
using testing::Matrix;

struct Problem {
  Dtype dtype = Dtype::f32;
  std::int64_t tokens = 0, hidden = 0, intermediate = 0;
  std::vector<float> x, w_gate, w_up, w_down, dout;

  HostProblem host() const { return {tokens, hidden, intermediate, x, w_gate, w_up, w_down, dout}; }
  std::string name() const {
    return std::string(name_of(dtype)) + " " + std::to_string(tokens) + "x" +
           std::to_string(hidden) + "x" + std::to_string(intermediate) + " ";
  }
};

Problem make_problem(std::int64_t tokens, std::int64_t hidden, std::int64_t intermediate,
                     Dtype dtype) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(hidden));
  return {dtype,
          tokens,
          hidden,
          intermediate,
          testing::random_values(tokens * hidden, 1, dtype),
          testing::random_values(intermediate * hidden, 2, dtype, scale),
          testing::random_values(intermediate * hidden, 3, dtype, scale),
          testing::random_values(hidden * intermediate, 4, dtype, scale),
          testing::random_values(tokens * hidden, 5, dtype)};
}

struct Result {
  std::vector<float> out, dx, dw_gate, dw_up, dw_down;
  friend bool operator==(const Result&, const Result&) = default;
};

template <class Exec>
Result run(const Exec& exec, const Problem& p, const Config& config, std::int64_t gap = 0) {
  constexpr Backend backend = backend_of<Exec>();
  const auto tokens = [&](const std::vector<float>& values) {
    return Matrix(backend, p.dtype, p.tokens, p.hidden, gap, values);
  };
  const auto in_weight = [&](const std::vector<float>& values) {
    return Matrix(backend, p.dtype, p.intermediate, p.hidden, 2 * gap, values);
  };
  const Matrix x = tokens(p.x);
  const Matrix dout = tokens(p.dout);
  const Matrix w_gate = in_weight(p.w_gate);
  const Matrix w_up = in_weight(p.w_up);
  const Matrix w_down(backend, p.dtype, p.hidden, p.intermediate, gap, p.w_down);
  const Matrix out(backend, p.dtype, p.tokens, p.hidden, 2 * gap);
  const Matrix dx(backend, p.dtype, p.tokens, p.hidden, gap);
  const Matrix dw_gate(backend, p.dtype, p.intermediate, p.hidden, gap);
  const Matrix dw_up(backend, p.dtype, p.intermediate, p.hidden, gap);
  const Matrix dw_down(backend, p.dtype, p.hidden, p.intermediate, 2 * gap);
  const ForwardArgs forward{.x = x.ref(),
                            .w_gate = w_gate.ref(),
                            .w_up = w_up.ref(),
                            .w_down = w_down.ref(),
                            .out = out.ref()};
  check(forward);
  testing::run_variant(exec, forward_variants<Exec>(), forward, config);
  const BackwardArgs backward{.x = x.ref(),
                              .w_gate = w_gate.ref(),
                              .w_up = w_up.ref(),
                              .w_down = w_down.ref(),
                              .dout = dout.ref(),
                              .dx = dx.ref(),
                              .dw_gate = dw_gate.ref(),
                              .dw_up = dw_up.ref(),
                              .dw_down = dw_down.ref()};
  check(backward);
  testing::run_variant(exec, backward_variants<Exec>(), backward, config);
  for (const Matrix* made : {&out, &dx, &dw_gate, &dw_up, &dw_down}) {
    EXPECT_TRUE(made->gaps_untouched());
  }
  return {out.values(), dx.values(), dw_gate.values(), dw_up.values(), dw_down.values()};
}

struct ExpectedResult {
  std::vector<ExpectedValue> out, dx, dw_gate, dw_up, dw_down;
};

void append(std::vector<ExpectedValue>& all, std::int64_t first, std::int64_t step,
            const ReferenceValues& row) {
  for (std::size_t i = 0; i < row.exact.size(); ++i) {
    all.push_back({first + static_cast<std::int64_t>(i) * step, row.exact[i], row.unfused[i]});
  }
}

ExpectedResult reference(const Problem& p) {
  ExpectedResult expected;
  for (std::int64_t t = 0; t < p.tokens; ++t) {
    append(expected.out, t * p.hidden, 1, reference_out(p.host(), t, p.dtype));
    append(expected.dx, t * p.hidden, 1, reference_dx(p.host(), t, p.dtype));
  }
  for (std::int64_t f = 0; f < p.intermediate; ++f) {
    const ReferenceWeights weights = reference_weights(p.host(), f, p.dtype);
    append(expected.dw_gate, f * p.hidden, 1, weights.dw_gate);
    append(expected.dw_up, f * p.hidden, 1, weights.dw_up);
    append(expected.dw_down, f, p.intermediate, weights.dw_down);
  }
  return expected;
}

void expect_reference(const Problem& p, const ExpectedResult& expected, const Result& result,
                      const std::string& what) {
  testing::expect_close(what + " out", result.out, p.hidden, expected.out, p.dtype);
  testing::expect_close(what + " dx", result.dx, p.hidden, expected.dx, p.dtype);
  testing::expect_close(what + " dw_gate", result.dw_gate, p.hidden, expected.dw_gate, p.dtype);
  testing::expect_close(what + " dw_up", result.dw_up, p.hidden, expected.dw_up, p.dtype);
  testing::expect_close(what + " dw_down", result.dw_down, p.intermediate, expected.dw_down,
                        p.dtype);
}

TEST(SwigluMlpReference, GradientsMatchFiniteDifferences) {
  Problem p = make_problem(3, 4, 5, Dtype::bf16);  // few digits, so that a step is exact in float
  const auto loss = [&] {
    double sum = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t) {
      const auto out = reference_out(p.host(), t, Dtype::f32).exact;
      for (std::size_t i = 0; i < out.size(); ++i) {
        sum += out[i] * p.dout[static_cast<std::size_t>(t) * out.size() + i];
      }
    }
    return sum;
  };
  ExpectedResult expected = reference(p);
  std::ranges::sort(expected.dw_down, {}, &ExpectedValue::index);
  constexpr float step = 0x1p-12F;
  testing::expect_gradient(p.x, testing::exact_of(expected.dx), step, 1e-6, loss);
  testing::expect_gradient(p.w_gate, testing::exact_of(expected.dw_gate), step, 1e-6, loss);
  testing::expect_gradient(p.w_up, testing::exact_of(expected.dw_up), step, 1e-6, loss);
  testing::expect_gradient(p.w_down, testing::exact_of(expected.dw_down), step, 1e-6, loss);
}

template <class Exec>
std::vector<Config> all_configs() {
  std::vector<Config> configs;
  for (const auto& variant : forward_variants<Exec>().all()) {
    if (variant.settings.empty()) configs.push_back({variant.name, {}});
    for (const Setting& tile : variant.settings) configs.push_back({variant.name, tile});
  }
  return configs;
}

class SwigluMlp : public ::testing::TestWithParam<Dtype> {};

TEST_P(SwigluMlp, MatchesReferenceForEveryShapeStrideVariantAndBackend) {
  const std::vector<std::array<std::int64_t, 3>> shapes{
      {16, 32, 64}, {7, 13, 17}, {1, 33, 40}, {31, 1, 5}, {3, 8, 1},
      {1, 1, 1},    {0, 8, 5},   {3, 0, 5},   {3, 8, 0},  {65, 0, 5}};
  for (const auto& [tokens, hidden, intermediate] : shapes) {
    const Problem p = make_problem(tokens, hidden, intermediate, GetParam());
    const ExpectedResult expected = reference(p);
    for (const std::int64_t gap : {0, 3}) {
      testing::for_each_exec([&](const auto& exec) {
        for (const char* variant : {"naive", "fused"}) {
          expect_reference(p, expected, run(exec, p, {variant, {}}, gap),
                           p.name() + variant + " gap " + std::to_string(gap));
        }
      });
    }
  }
}

TEST_P(SwigluMlp, BlocksJoinForEveryTile) {
  // Ragged in both extents of the smaller tiles.
  const Problem p = make_problem(1027, 9, 1030, GetParam());
  const ExpectedResult expected = reference(p);
  const Kokkos::OpenMP exec(2);
  for (const Config& config : all_configs<Kokkos::OpenMP>()) {
    expect_reference(p, expected, run(exec, p, config),
                     p.name() + config.variant + " " + to_text(config.setting));
  }
}

TEST_P(SwigluMlp, EqualBitsForAnyNumberOfThreads) {
  const Problem p = make_problem(300, 70, 530, GetParam());
  for (const Config& config : {Config{"naive", {}}, Config{"fused", {256, 256}}}) {
    const Result one = run(Kokkos::OpenMP(1), p, config);
    EXPECT_TRUE(one == run(Kokkos::OpenMP(2), p, config)) << config.variant;
    EXPECT_TRUE(one == run(Kokkos::OpenMP(2), p, config)) << config.variant << ", again";
    EXPECT_TRUE(one == run(serial_host(), p, config)) << config.variant;
  }
}

/// Workspace and outputs of one variant as the tracker sees them, inputs not counted.
template <class Args, class Exec>
std::size_t measured_bytes(const Exec& exec, const VariantTable<Exec, Args>& table,
                           const Args& shape, const std::vector<TensorRef<2> Args::*>& outputs,
                           const std::string& variant) {
  Args args = shape;
  const memory::Scope scope;
  std::vector<bench::Tensor<2>> made;
  for (const auto output : outputs) {
    made.emplace_back("output", backend_of<Exec>(), (shape.*output).dtype, (shape.*output).extent);
    args.*output = made.back().ref();
  }
  testing::run_variant(exec, table, args, {variant, {}});
  return scope.peak_bytes();
}

TEST_P(SwigluMlp, FusedNeedsAtMostThreeFifthsOfTheMemory) {
  memory::install();
  const Problem p = make_problem(2048, 64, 4096, GetParam());
  const Kokkos::OpenMP exec(2);
  constexpr Backend backend = Backend::openmp;
  const Matrix x(backend, p.dtype, p.tokens, p.hidden, 0, p.x);
  const Matrix w_in(backend, p.dtype, p.intermediate, p.hidden, 0, p.w_gate);
  const Matrix w_down(backend, p.dtype, p.hidden, p.intermediate, 0, p.w_down);
  const ForwardArgs forward{.x = x.ref(),
                            .w_gate = w_in.ref(),
                            .w_up = w_in.ref(),
                            .w_down = w_down.ref(),
                            .out = {nullptr, p.dtype, {p.tokens, p.hidden}}};
  const BackwardArgs backward{.x = x.ref(),
                              .w_gate = w_in.ref(),
                              .w_up = w_in.ref(),
                              .w_down = w_down.ref(),
                              .dout = x.ref(),
                              .dx = {nullptr, p.dtype, {p.tokens, p.hidden}},
                              .dw_gate = {nullptr, p.dtype, {p.intermediate, p.hidden}},
                              .dw_up = {nullptr, p.dtype, {p.intermediate, p.hidden}},
                              .dw_down = {nullptr, p.dtype, {p.hidden, p.intermediate}}};
  const auto forward_bytes = [&](const char* variant) {
    return static_cast<double>(measured_bytes(exec, forward_variants<Kokkos::OpenMP>(), forward,
                                              {&ForwardArgs::out}, variant));
  };
  const auto backward_bytes = [&](const char* variant) {
    return static_cast<double>(measured_bytes(
        exec, backward_variants<Kokkos::OpenMP>(), backward,
        {&BackwardArgs::dx, &BackwardArgs::dw_gate, &BackwardArgs::dw_up, &BackwardArgs::dw_down},
        variant));
  };
  EXPECT_LE(forward_bytes("fused"), 0.6 * forward_bytes("naive"));
  EXPECT_LE(backward_bytes("fused"), 0.6 * backward_bytes("naive"));
}

TEST_P(SwigluMlp, WorkspaceOfTheForwardPassDoesNotGrowWithTheTokens) {
  const Host exec = serial_host();
  const auto bytes = [&](std::int64_t tokens, const Setting& tile) {
    ForwardArgs args;
    args.x = {nullptr, GetParam(), {tokens, 4096}};
    args.w_gate = {nullptr, GetParam(), {11008, 4096}};
    args.w_up = args.w_gate;
    args.w_down = {nullptr, GetParam(), {4096, 11008}};
    args.out = {nullptr, GetParam(), {tokens, 4096}};
    return forward_variants<Host>().workspace_bytes(exec, args, {"fused", tile});
  };
  EXPECT_EQ(bytes(1024, {}), bytes(1 << 20, {}));
  EXPECT_EQ(bytes(1024, {1024, 1024}), bytes(1 << 20, {1024, 1024}));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SwigluMlp, ::testing::ValuesIn(all_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(SwigluMlpTest, ArgumentsThatDoNotFitAreRefused) {
  ForwardArgs args;
  args.x = {nullptr, Dtype::f32, {4, 8}};
  args.w_gate = {nullptr, Dtype::f32, {16, 8}};
  args.w_up = args.w_gate;
  args.w_down = {nullptr, Dtype::f32, {8, 15}};
  args.out = {nullptr, Dtype::f32, {4, 8}};
  EXPECT_EQ(test::message_of([&] { check(args); }),
            "swiglu_mlp: w_down: holds shape (8, 15), expected (8, 16)");
}

// The order of the intermediate columns does not matter: they are only summed over.
RC_GTEST_PROP(SwigluMlpProperty, PermutedColumnsGiveTheSameOutput, ()) {
  const auto intermediate = *rc::gen::inRange<std::int64_t>(2, 40);
  Problem p = make_problem(5, 12, intermediate, Dtype::f32);
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  std::vector<std::int64_t> order(static_cast<std::size_t>(intermediate));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::int64_t f) {
    return testing::hash(seed, static_cast<std::uint64_t>(f));
  });
  Problem q = p;
  for (std::int64_t f = 0; f < intermediate; ++f) {
    const std::int64_t g = order[static_cast<std::size_t>(f)];
    for (std::int64_t i = 0; i < p.hidden; ++i) {
      const auto to = static_cast<std::size_t>(f * p.hidden + i);
      const auto from = static_cast<std::size_t>(g * p.hidden + i);
      q.w_gate[to] = p.w_gate[from];
      q.w_up[to] = p.w_up[from];
      q.w_down[static_cast<std::size_t>(i * intermediate + f)] =
          p.w_down[static_cast<std::size_t>(i * intermediate + g)];
    }
  }
  const Result a = run(serial_host(), p, {"fused", {}});
  const Result b = run(serial_host(), q, {"fused", {}});
  for (std::size_t i = 0; i < a.out.size(); ++i) {
    RC_ASSERT(std::abs(a.out[i] - b.out[i]) <= 1e-5F);
  }
}

}  // namespace
}  // namespace katt::swiglu_mlp
