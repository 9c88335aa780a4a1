#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/swiglu/bench/description.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/suite.hpp"

namespace katt::swiglu {
namespace {

using Fwd = testing::Forward<Description>;
using Bwd = testing::Backward<Description>;
using testing::HostValues;
using testing::Problem;

struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static constexpr double gradient_tolerance = 1e-6;
  static std::vector<testing::Extents> shapes() {
    return testing::extents_of(
        {"tokens", "intermediate"},
        {{3, 7}, {1, 1}, {64, 128}, {7, 13}, {1, 4099}, {31, 1}, {3, 2049}, {19, 5003}});
  }
  static std::vector<std::int64_t> gaps() { return {0, 3, 32}; }
  static std::vector<std::vector<testing::Taken>> in_place() {
    return {{{"out", "gate"}}, {{"out", "up"}}};
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Swiglu, OperatorSuite, Cases);

template <class Pass>
Problem make_problem(std::int64_t tokens, std::int64_t intermediate, Dtype dtype,
                     std::uint64_t seed = 1) {
  return testing::make_problem<Description, Pass>(
      {{"tokens", tokens}, {"intermediate", intermediate}}, dtype, seed);
}

/// The outputs of both passes, of a problem of the backward one.
template <class Exec>
HostValues run(const Exec& exec, Problem p, const std::string& variant) {
  HostValues made = *testing::outputs_of<Description, Bwd>(exec, p, variant);
  p.backward = false;
  made.merge(*testing::outputs_of<Description, Fwd>(exec, p, variant));
  return made;
}

class Swiglu : public ::testing::TestWithParam<Dtype> {};

TEST_P(Swiglu, LargeTensorsTakeTheSameValuesPastTheCaches) {
  // Large enough for streaming stores, which the short rows are not.
  constexpr std::int64_t columns = 4096;
  const std::int64_t rows =
      (std::int64_t{36} << 20) / columns / static_cast<std::int64_t>(size_of(GetParam()));
  Problem large = make_problem<Bwd>(rows, columns, GetParam());
  const Problem small = make_problem<Bwd>(2, columns, GetParam());
  for (const auto& [name, values] : small.values) {
    std::copy(values.begin(), values.end(), large.values[name].begin());
  }
  testing::for_each_exec([&](const auto& exec) {
    const HostValues all = run(exec, large, "fused");
    for (const auto& [name, some] : run(exec, small, "fused")) {
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.at(name).begin())) << name;
    }
    EXPECT_FALSE(std::isnan(all.at("out").back()));
  });
}

TEST_P(Swiglu, LargeValuesGiveNoNan) {
  const float largest = GetParam() == Dtype::f16 ? 6e4F : 1e38F;
  Problem p = make_problem<Bwd>(1, 12, GetParam());
  p.values["gate"] = {1e4F,    -1e4F,    88.0F, -88.0F, 200.0F, -200.0F,
                      largest, -largest, 0.0F,  -0.0F,  1e-7F,  -1e-7F};
  for (float& gate : p.values["gate"]) gate = round_to(p.dtype, gate);
  p.values["up"].assign(12, 1.0F);
  p.values["dout"].assign(12, 1.0F);
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const std::string& variant : testing::names_of(forward_variants<Exec>())) {
      const HostValues made = run(exec, p, variant);
      for (std::size_t i = 0; i < 12; ++i) {
        const ReferenceElement exact = reference_element(p.values["gate"][i], 1, 1);
        const auto expect = [&](const char* name, double value) {
          EXPECT_NEAR(made.at(name)[i], value, 4 * epsilon_of(p.dtype) * std::abs(value) + 1e-30)
              << variant << " " << name << " at " << p.values["gate"][i];
        };
        expect("out", exact.out);
        expect("dup", exact.dup);
        expect("dgate", exact.dgate);
      }
    }
  });
}

TEST_P(Swiglu, GradientsOfLargeFactorsAreFinite) {
  // dout · up overflows; dgate, with the slope of a gate at −40, and dup do not
  const float large = GetParam() == Dtype::f16 ? 3e2F : 1e20F;
  Problem p = make_problem<Bwd>(1, 67, GetParam());
  p.values["gate"].assign(67, GetParam() == Dtype::f16 ? -8.0F : -40.0F);
  p.values["up"].assign(67, round_to(p.dtype, large));
  p.values["dout"] = p.values["up"];
  testing::for_each_exec([&](const auto& exec) {
    const HostValues made = run(exec, p, "fused");
    const ReferenceElement exact =
        reference_element(p.values["gate"][0], p.values["up"][0], p.values["dout"][0]);
    for (std::size_t i = 0; i < 67; ++i) {
      EXPECT_NEAR(made.at("dgate")[i] / exact.dgate, 1, 4 * epsilon_of(p.dtype)) << i;
    }
  });
}

TEST_P(Swiglu, TwoGradientsMayBeTwoInputs) {
  const Problem p = make_problem<Bwd>(5, 261, GetParam());
  testing::for_each_exec([&](const auto& exec) {
    EXPECT_TRUE((testing::outputs_of<Description, Bwd>(exec, p, "fused", 0,
                                                       {{"dgate", "dout"}, {"dup", "up"}})) ==
                (testing::outputs_of<Description, Bwd>(exec, p, "fused")));
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Swiglu, ::testing::ValuesIn(all_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(SwigluTest, ArgumentsThatDoNotFitAreRefused) {
  ForwardArgs args;
  args.gate = {nullptr, Dtype::f32, {4, 8}};
  args.up = {nullptr, Dtype::f32, {4, 7}};
  args.out = {nullptr, Dtype::f32, {4, 8}};
  EXPECT_EQ(test::message_of([&] { check(args); }),
            "swiglu: up: holds shape (4, 7), expected (4, 8)");
  args.up = {nullptr, Dtype::f32, {4, 8}};
  EXPECT_THROW((void)forward(serial_host(), args, {"naive", {}}, Workspace{}), InputError);
  EXPECT_THROW((void)forward(serial_host(), args, {"none", {}}, Workspace{}), InputError);
}

// silu(g) − silu(−g) = g·σ(g) + g·σ(−g) = g.
RC_GTEST_PROP(SwigluProperty, SiluOfBothSignsAddsUpToTheArgument, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(1, 200);
  const auto seed = *rc::gen::inRange<std::uint64_t>(1, 1000);
  Problem p = make_problem<Bwd>(1, count, Dtype::f32, seed);
  p.values["up"].assign(static_cast<std::size_t>(count), 1.0F);
  p.values["dout"].assign(static_cast<std::size_t>(count), 1.0F);
  const std::vector<float> gate = testing::random_values(count, seed, Dtype::f32, 6.0F);
  p.values["gate"] = gate;
  const HostValues plus = run(serial_host(), p, "fused");
  for (float& g : p.values["gate"]) g = -g;
  const HostValues minus = run(serial_host(), p, "fused");
  for (std::size_t i = 0; i < gate.size(); ++i) {
    RC_ASSERT(std::abs(plus.at("out")[i] - minus.at("out")[i] - gate[i]) <=
              4 * 0x1p-23F * std::abs(gate[i]));
    RC_ASSERT(std::abs(plus.at("dgate")[i] + minus.at("dgate")[i] - 1.0F) <=
              1e-5F);  // silu′(g) + silu′(−g) = 1
  }
}

// out and dgate are linear in up, and powers of two round nothing.
RC_GTEST_PROP(SwigluProperty, LinearInUp, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(1, 200);
  const auto dtype = *rc::gen::elementOf(std::vector<Dtype>{Dtype::f32, Dtype::bf16});
  Problem p = make_problem<Bwd>(1, count, dtype);
  const HostValues once = run(serial_host(), p, "fused");
  for (float& u : p.values["up"]) u *= 4.0F;
  const HostValues four = run(serial_host(), p, "fused");
  for (std::size_t i = 0; i < p.values["up"].size(); ++i) {
    RC_ASSERT(four.at("out")[i] == 4.0F * once.at("out")[i]);
    RC_ASSERT(four.at("dgate")[i] == 4.0F * once.at("dgate")[i]);
    RC_ASSERT(four.at("dup")[i] == once.at("dup")[i]);
  }
}

}  // namespace
}  // namespace katt::swiglu
