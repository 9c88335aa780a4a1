#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "memory/tracker.hpp"
#include "ops/swiglu/swiglu.hpp"
#include "ops/swiglu/swiglu_ref.hpp"
#include "tests/ops/linear_problem.hpp"

namespace katt::swiglu {
namespace {

using testing::ExpectedValue;
using testing::Matrix;

struct Problem {
  Dtype dtype = Dtype::f32;
  std::int64_t tokens = 0, intermediate = 0;
  std::vector<float> gate, up, dout;
};

Problem make_problem(std::int64_t tokens, std::int64_t intermediate, Dtype dtype,
                     float scale = 2.0F) {
  const std::int64_t count = tokens * intermediate;
  return {dtype,
          tokens,
          intermediate,
          testing::random_values(count, 1, dtype, scale),
          testing::random_values(count, 2, dtype),
          testing::random_values(count, 3, dtype)};
}

struct Result {
  std::vector<float> out, dgate, dup;
  friend bool operator==(const Result&, const Result&) = default;
};

template <class Exec>
Result run(const Exec& exec, const Problem& p, const std::string& variant, std::int64_t gap = 0) {
  constexpr Backend backend = backend_of<Exec>();
  const auto given = [&](std::int64_t rows_gap, const std::vector<float>& values) {
    return Matrix(backend, p.dtype, p.tokens, p.intermediate, rows_gap, values);
  };
  const Matrix gate = given(gap, p.gate);
  const Matrix up = given(2 * gap, p.up);
  const Matrix dout = given(gap, p.dout);
  const Matrix out(backend, p.dtype, p.tokens, p.intermediate, 3 * gap);
  const Matrix dgate(backend, p.dtype, p.tokens, p.intermediate, gap);
  const Matrix dup(backend, p.dtype, p.tokens, p.intermediate, 2 * gap);
  const ForwardArgs forward{.gate = gate.ref(), .up = up.ref(), .out = out.ref()};
  check(forward);
  testing::run_variant(exec, forward_variants<Exec>(), forward, {variant, {}});
  const BackwardArgs backward{.gate = gate.ref(),
                              .up = up.ref(),
                              .dout = dout.ref(),
                              .dgate = dgate.ref(),
                              .dup = dup.ref()};
  check(backward);
  testing::run_variant(exec, backward_variants<Exec>(), backward, {variant, {}});
  EXPECT_TRUE(out.gaps_untouched() && dgate.gaps_untouched() && dup.gaps_untouched());
  return {out.values(), dgate.values(), dup.values()};
}

void expect_reference(const Problem& p, const Result& result, const std::string& what) {
  const auto expect = [&](const char* name, const std::vector<float>& got,
                          double ReferenceElement::*member) {
    struct Pair {
      double exact, unfused;
    };
    const auto expected =
        testing::expect_all(p.tokens, p.intermediate, [&](std::int64_t t, std::int64_t f) {
          const auto at = static_cast<std::size_t>(t * p.intermediate + f);
          return Pair{reference_element(p.gate[at], p.up[at], p.dout[at]).*member,
                      unfused_element(p.gate[at], p.up[at], p.dout[at], p.dtype).*member};
        });
    testing::expect_close(what + " " + name, got, p.intermediate, expected, p.dtype);
  };
  expect("out", result.out, &ReferenceElement::out);
  expect("dgate", result.dgate, &ReferenceElement::dgate);
  expect("dup", result.dup, &ReferenceElement::dup);
}

TEST(SwigluReference, GradientsMatchFiniteDifferences) {
  Problem p = make_problem(3, 7, Dtype::bf16);  // few digits, so that a step is exact in float
  std::vector<double> dgate;
  std::vector<double> dup;
  for (std::size_t i = 0; i < p.gate.size(); ++i) {
    const ReferenceElement element = reference_element(p.gate[i], p.up[i], p.dout[i]);
    dgate.push_back(element.dgate);
    dup.push_back(element.dup);
  }
  const auto loss = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < p.gate.size(); ++i) {
      sum += reference_element(p.gate[i], p.up[i], 0).out * p.dout[i];
    }
    return sum;
  };
  testing::expect_gradient(p.gate, dgate, 0x1p-12F, 1e-6, loss);
  testing::expect_gradient(p.up, dup, 0x1p-12F, 1e-9, loss);
}

class Swiglu : public ::testing::TestWithParam<Dtype> {};

TEST_P(Swiglu, MatchesReferenceForEveryShapeStrideVariantAndBackend) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes{{1, 1},    {64, 128}, {7, 13},
                                                                  {1, 4099}, {31, 1},   {3, 2049}};
  for (const auto& [tokens, intermediate] : shapes) {
    const Problem p = make_problem(tokens, intermediate, GetParam());
    for (const std::int64_t gap : {0, 3, 32}) {
      testing::for_each_exec([&]<class Exec>(const Exec& exec) {
        for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
          expect_reference(p, run(exec, p, variant, gap),
                           variant + " (" + std::to_string(tokens) + ", " +
                               std::to_string(intermediate) + ") gap " + std::to_string(gap));
        }
      });
    }
  }
}

TEST_P(Swiglu, LargeTensorsTakeTheSameValuesPastTheCaches) {
  // Large enough for streaming stores, which the short rows are not.
  constexpr std::int64_t columns = 4096;
  const std::int64_t rows =
      (std::int64_t{36} << 20) / columns / static_cast<std::int64_t>(size_of(GetParam()));
  Problem large = make_problem(rows, columns, GetParam());
  const Problem small = make_problem(2, columns, GetParam());
  for (std::size_t i = 0; i < small.gate.size(); ++i) {
    large.gate[i] = small.gate[i];
    large.up[i] = small.up[i];
    large.dout[i] = small.dout[i];
  }
  testing::for_each_exec([&](const auto& exec) {
    const Result all = run(exec, large, "fused");
    const Result some = run(exec, small, "fused");
    const auto begins_with = [](const std::vector<float>& whole, const std::vector<float>& part) {
      return std::equal(part.begin(), part.end(), whole.begin());
    };
    EXPECT_TRUE(begins_with(all.out, some.out));
    EXPECT_TRUE(begins_with(all.dgate, some.dgate));
    EXPECT_TRUE(begins_with(all.dup, some.dup));
    EXPECT_FALSE(std::isnan(all.out.back()));
  });
}

TEST_P(Swiglu, LargeValuesGiveNoNan) {
  const float largest = GetParam() == Dtype::f16 ? 6e4F : 1e38F;
  Problem p{GetParam(), 1, 12, {}, {}, {}};
  for (const float g : {1e4F, -1e4F, 88.0F, -88.0F, 200.0F, -200.0F, largest, -largest, 0.0F, -0.0F,
                        1e-7F, -1e-7F}) {
    p.gate.push_back(round_to(p.dtype, g));
    p.up.push_back(1.0F);
    p.dout.push_back(1.0F);
  }
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
      const Result result = run(exec, p, variant);
      for (std::size_t i = 0; i < p.gate.size(); ++i) {
        const ReferenceElement exact = reference_element(p.gate[i], 1, 1);
        const double relative = 4 * epsilon_of(p.dtype);
        const std::string what = variant + " at " + std::to_string(p.gate[i]);
        EXPECT_NEAR(result.out[i], exact.out, relative * std::abs(exact.out) + 1e-30) << what;
        EXPECT_NEAR(result.dup[i], exact.dup, relative * std::abs(exact.dup) + 1e-30) << what;
        EXPECT_NEAR(result.dgate[i], exact.dgate, relative * std::abs(exact.dgate) + 1e-30) << what;
      }
    }
  });
}

TEST_P(Swiglu, AnOutputMayBeAnInput) {
  const Problem p = make_problem(5, 261, GetParam());
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    constexpr Backend backend = backend_of<Exec>();
    const auto given = [&](const std::vector<float>& values) {
      return Matrix(backend, p.dtype, p.tokens, p.intermediate, 0, values);
    };
    for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
      const Result apart = run(exec, p, variant);
      const Matrix gate = given(p.gate);
      const Matrix up = given(p.up);
      const ForwardArgs args{.gate = gate.ref(), .up = up.ref(), .out = gate.ref()};
      testing::run_variant(exec, forward_variants<Exec>(), args, {variant, {}});
      EXPECT_EQ(gate.values(), apart.out) << variant;
    }
    const Result apart = run(exec, p, "fused");
    const Matrix gate = given(p.gate);
    const Matrix up = given(p.up);
    const Matrix dout = given(p.dout);
    const BackwardArgs args{.gate = gate.ref(),
                            .up = up.ref(),
                            .dout = dout.ref(),
                            .dgate = dout.ref(),
                            .dup = up.ref()};
    testing::run_variant(exec, backward_variants<Exec>(), args, {"fused", {}});
    EXPECT_EQ(dout.values(), apart.dgate);
    EXPECT_EQ(up.values(), apart.dup);
  });
}

TEST_P(Swiglu, EqualBitsForAnyNumberOfThreads) {
  const Problem p = make_problem(19, 5003, GetParam());
  for (const char* variant : {"naive", "fused"}) {
    const Result one = run(Kokkos::OpenMP(1), p, variant);
    EXPECT_TRUE(one == run(Kokkos::OpenMP(2), p, variant)) << variant;
    EXPECT_TRUE(one == run(serial_host(), p, variant)) << variant;
  }
}

TEST_P(Swiglu, AllocatesNothing) {
  memory::install();
  const Problem p = make_problem(9, 100, GetParam());
  const Host exec = serial_host();
  const Matrix gate(Backend::serial, p.dtype, p.tokens, p.intermediate, 0, p.gate);
  const Matrix out(Backend::serial, p.dtype, p.tokens, p.intermediate);
  const ForwardArgs args{.gate = gate.ref(), .up = gate.ref(), .out = out.ref()};
  for (const char* variant : {"naive", "fused"}) {
    const bench::Buffer workspace(
        "workspace", Backend::serial,
        forward_variants<Host>().workspace_bytes(exec, args, {variant, {}}));
    const memory::Scope scope;
    EXPECT_TRUE(forward(exec, args, {variant, {}}, workspace.workspace()).is_ok());
    EXPECT_EQ(scope.peak_bytes(), 0U) << variant;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Swiglu, ::testing::ValuesIn(all_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(SwigluTest, ArgumentsThatDoNotFitAreRefused) {
  ForwardArgs args;
  args.gate = {nullptr, Dtype::f32, {4, 8}};
  args.up = {nullptr, Dtype::f32, {4, 7}};
  args.out = {nullptr, Dtype::f32, {4, 8}};
  try {
    check(args);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "swiglu: up: holds shape (4, 7), expected (4, 8)");
  }
  args.up = {nullptr, Dtype::f32, {4, 8}};
  EXPECT_THROW((void)forward(serial_host(), args, {"naive", {}}, Workspace{}), InputError);
  EXPECT_THROW((void)forward(serial_host(), args, {"none", {}}, Workspace{}), InputError);
}

// silu(g) − silu(−g) = g·σ(g) + g·σ(−g) = g.
RC_GTEST_PROP(SwigluProperty, SiluOfBothSignsAddsUpToTheArgument, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(1, 200);
  const auto seed = *rc::gen::inRange<std::uint64_t>(1, 1000);
  Problem p{Dtype::f32,
            1,
            count,
            testing::random_values(count, seed, Dtype::f32, 6.0F),
            std::vector<float>(static_cast<std::size_t>(count), 1.0F),
            std::vector<float>(static_cast<std::size_t>(count), 1.0F)};
  const Result plus = run(serial_host(), p, "fused");
  for (float& g : p.gate) g = -g;
  const Result minus = run(serial_host(), p, "fused");
  for (std::size_t i = 0; i < p.gate.size(); ++i) {
    RC_ASSERT(std::abs(plus.out[i] - minus.out[i] + p.gate[i]) <=
              4 * 0x1p-23F * std::abs(p.gate[i]));
    RC_ASSERT(std::abs(plus.dgate[i] + minus.dgate[i] - 1.0F) <=
              1e-5F);  // silu′(g) + silu′(−g) = 1
  }
}

// out and dgate are linear in up, and powers of two round nothing.
RC_GTEST_PROP(SwigluProperty, LinearInUp, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(1, 200);
  const auto dtype = *rc::gen::elementOf(std::vector<Dtype>{Dtype::f32, Dtype::bf16});
  Problem p = make_problem(1, count, dtype);
  const Result once = run(serial_host(), p, "fused");
  for (float& u : p.up) u *= 4.0F;
  const Result four = run(serial_host(), p, "fused");
  for (std::size_t i = 0; i < p.up.size(); ++i) {
    RC_ASSERT(four.out[i] == 4.0F * once.out[i]);
    RC_ASSERT(four.dgate[i] == 4.0F * once.dgate[i]);
    RC_ASSERT(four.dup[i] == once.dup[i]);
  }
}

}  // namespace
}  // namespace katt::swiglu
