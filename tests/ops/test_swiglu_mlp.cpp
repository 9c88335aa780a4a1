#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "ops/swiglu_mlp/bench/description.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/suite.hpp"

namespace katt::swiglu_mlp {
namespace {

using Fwd = testing::Forward<Description>;
using Bwd = testing::Backward<Description>;

const std::vector<std::string> axes{"tokens", "hidden", "intermediate"};

template <class Pass>
testing::Problem make_problem(std::int64_t tokens, std::int64_t hidden, std::int64_t intermediate,
                              Dtype dtype) {
  return testing::make_problem<Description, Pass>(
      testing::extents_of(axes, {{tokens, hidden, intermediate}}).front(), dtype);
}

struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static constexpr double slack = 1e-5;  // of 1 x 1 x 1, whose few values are small
  static std::vector<testing::Extents> shapes() {
    return testing::extents_of(axes, {{3, 4, 5},
                                      {16, 32, 64},
                                      {7, 13, 17},
                                      {1, 33, 40},
                                      {31, 1, 5},
                                      {3, 8, 1},
                                      {1, 1, 1},
                                      {0, 8, 5},
                                      {3, 0, 5},
                                      {3, 8, 0},
                                      {65, 0, 5},
                                      {300, 70, 530}});
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(SwigluMlp, OperatorSuite, Cases);

TEST(SwigluMlp, BlocksJoinForEveryTile) {
  const Kokkos::OpenMP exec(2);
  testing::for_each_pass<Description>([&]<class Pass>(Pass) {
    for (const Dtype dtype : all_dtypes) {
      // Ragged in both extents of the smaller tiles.
      const auto p = make_problem<Pass>(1027, 9, 1030, dtype);
      const testing::Expected expected = bench::data_of<Description>().expected(p);
      for (const auto& variant : Pass::data().variants(Backend::openmp)) {
        for (const Setting& tile : variant.settings) {
          const auto made =
              testing::outputs_of<Description, Pass>(exec, p, variant.name, 0, {}, tile);
          const auto errors = bench::compare(Pass::data(), p, expected, *made);
          EXPECT_TRUE(errors.status.is_ok())
              << testing::text_of(p) << " " << to_text(tile) << ": " << errors.status.reason();
        }
      }
    }
  });
}

/// Bytes of the outputs and the workspace of a variant.
template <class Pass>
double bytes_of(const testing::Extents& extents, Dtype dtype, const char* variant,
                const Setting& tile = {}) {
  const auto p = testing::shape_problem<Description, Pass>(extents, dtype);
  const bench::Tensors shapes = bench::shapes_of(Pass::data(), p);
  const auto call = Pass::data().decide(Backend::openmp, 2, shapes, {variant, tile});
  double bytes = static_cast<double>(call->workspace_bytes());
  for (const auto& output : Pass::data().outputs) {
    bytes += static_cast<double>(shapes.tensor<2>(output.name).size() * size_of(dtype));
  }
  return bytes;
}

TEST(SwigluMlp, FusedNeedsAtMostThreeFifthsOfTheMemory) {
  const auto large = testing::extents_of(axes, {{2048, 64, 4096}}).front();
  testing::for_each_pass<Description>([&]<class Pass>(Pass) {
    for (const Dtype dtype : all_dtypes) {
      EXPECT_LE(bytes_of<Pass>(large, dtype, "fused"), 0.6 * bytes_of<Pass>(large, dtype, "naive"));
    }
  });
}

TEST(SwigluMlp, WorkspaceOfTheForwardPassDoesNotGrowWithTheTokens) {
  const Host exec = serial_host();
  const auto bytes = [&](std::int64_t tokens, const Setting& tile) {
    ForwardArgs args;
    args.x = {nullptr, Dtype::bf16, {tokens, 4096}};
    args.w_gate = {nullptr, Dtype::bf16, {11008, 4096}};
    args.w_up = args.w_gate;
    args.w_down = {nullptr, Dtype::bf16, {4096, 11008}};
    args.out = {nullptr, Dtype::bf16, {tokens, 4096}};
    return forward_variants<Host>().workspace_bytes(exec, args, {"fused", tile});
  };
  EXPECT_EQ(bytes(1024, {}), bytes(1 << 20, {}));
  EXPECT_EQ(bytes(1024, {1024, 1024}), bytes(1 << 20, {1024, 1024}));
}

TEST(SwigluMlp, ArgumentsThatDoNotFitAreRefused) {
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
  constexpr std::int64_t hidden = 12;
  const auto p = make_problem<Fwd>(5, hidden, intermediate, Dtype::f32);
  const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  std::vector<std::int64_t> order(static_cast<std::size_t>(intermediate));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::int64_t f) {
    return testing::hash(seed, static_cast<std::uint64_t>(f));
  });
  auto q = p;
  for (std::int64_t f = 0; f < intermediate; ++f) {
    const std::int64_t g = order[static_cast<std::size_t>(f)];
    for (std::int64_t i = 0; i < hidden; ++i) {
      for (const char* weight : {"w_gate", "w_up"}) {
        q.values[weight][static_cast<std::size_t>(f * hidden + i)] =
            p.values.at(weight)[static_cast<std::size_t>(g * hidden + i)];
      }
      q.values["w_down"][static_cast<std::size_t>(i * intermediate + f)] =
          p.values.at("w_down")[static_cast<std::size_t>(i * intermediate + g)];
    }
  }
  const auto a = testing::out_of<Description>(p);
  const auto b = testing::out_of<Description>(q);
  for (std::size_t i = 0; i < a.size(); ++i) RC_ASSERT(std::abs(a[i] - b[i]) <= 1e-5F);
}

}  // namespace
}  // namespace katt::swiglu_mlp
