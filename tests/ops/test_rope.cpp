#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/error.hpp"
#include "ops/rope/bench/description.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/suite.hpp"
#include "tests/slope.hpp"

namespace katt::rope {
namespace {

using Fwd = testing::Forward<Description>;
using Bwd = testing::Backward<Description>;
using testing::Problem;

/// A power of two, a prime, length 1, whole vectors, tails, the largest head_dim; with every
/// combination of pairs, storage, places and positions.
struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static constexpr bool has_gradient_check = false;  // below: the backward pass reads dout alone
  static std::vector<testing::Extents> shapes() {
    const std::vector<std::array<std::int64_t, 5>> sizes{
        {1, 1, 0, 1, 2},   {2, 3, 1, 17, 64}, {1, 4, 2, 33, 128}, {1, 2, 0, 1, 80}, {3, 1, 5, 7, 6},
        {2, 2, 2, 64, 32}, {1, 1, 1, 5, 512}, {2, 1, 1, 130, 96}, {2, 5, 3, 67, 64}};
    std::vector<testing::Extents> all;
    std::int64_t next = 0;
    for (const auto& [batch, heads, kv_heads, seq, head_dim] : sizes) {
      // Four of the sixteen combinations each time; all of them come up.
      for (std::int64_t options = next++ % 4; options < 16; options += 4) {
        all.push_back({{"batch", batch},
                       {"heads", heads},
                       {"kv_heads", kv_heads},
                       {"seq_q", seq},
                       {"head_dim", head_dim},
                       {"interleaved", options & 1},
                       {"positions", options >> 1 & 1},
                       {"in_place", options >> 2 & 1},
                       {"layout", options >> 3 & 1}});
      }
    }
    return all;
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Rope, OperatorSuite, Cases);

TEST(Rope, TheGradientOfTheReferenceIsThatOfFiniteDifferences) {
  for (const std::int64_t interleaved : {0, 1}) {
    const testing::Extents shape{{"batch", 1},    {"heads", 2},    {"seq_q", 5},
                                 {"head_dim", 8}, {"kv_heads", 0}, {"interleaved", interleaved}};
    auto forward = testing::make_problem<Description, Fwd>(shape, Dtype::bf16, 11);
    const auto backward = testing::make_problem<Description, Bwd>(shape, Dtype::bf16, 12);
    const auto loss = [&] {
      double sum = 0;
      const testing::Expected out = Description::expected(forward);
      for (const auto& value : out.front().values) {
        sum += value.exact * backward.floats("dout")[static_cast<std::size_t>(value.index)];
      }
      return sum;
    };
    const testing::Expected gradient = Description::expected(backward);
    for (const auto& value : gradient.front().values) {
      float& x = forward.values["x"][static_cast<std::size_t>(value.index)];
      EXPECT_NEAR(test::slope(x, 0x1p-8F, loss), value.exact, 1e-11) << value.index;
    }
  }
}

/// A problem of one row.
Problem one_row(const std::vector<float>& row, std::int64_t position, bool interleaved) {
  const testing::Extents shape{{"batch", 1},
                               {"heads", 1},
                               {"kv_heads", 0},
                               {"seq_q", 1},
                               {"head_dim", std::ssize(row)},
                               {"positions", 1},
                               {"interleaved", interleaved ? 1 : 0}};
  auto p = testing::make_problem<Description, Fwd>(shape, Dtype::f32);
  p.values["x"] = row;
  p.integers["positions"] = {position};
  return p;
}

/// One row of values turned to a position by the fused kernel in f32.
std::vector<float> turned_row(const std::vector<float>& row, std::int64_t position,
                              bool interleaved) {
  return testing::outputs_of<Description, Fwd>(Kokkos::DefaultExecutionSpace(),
                                               one_row(row, position, interleaved), "fused")
      ->at("out");
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0, std::plus<>(),
                            [](float x, float y) { return double{x} * double{y}; });
}

std::vector<float> random_row(std::size_t size) {
  std::vector<float> row(size);
  testing::fill(row, *rc::gen::arbitrary<std::uint32_t>(), Dtype::f32);
  return row;
}

RC_GTEST_PROP(RopeProperty, KeepsTheNormOfEveryHead, ()) {
  const auto half = *rc::gen::inRange(1, 70);
  const auto row = random_row(static_cast<std::size_t>(2 * half));
  const auto out = turned_row(row, *rc::gen::inRange(0, 1 << 20), *rc::gen::arbitrary<bool>());
  RC_ASSERT(std::abs(std::sqrt(dot(out, out)) - std::sqrt(dot(row, row))) <=
            1e-6 * std::sqrt(dot(row, row)));
}

RC_GTEST_PROP(RopeProperty, ScoresDependOnTheDistanceOfPositionsOnly, ()) {
  const auto size = static_cast<std::size_t>(2 * *rc::gen::inRange(1, 70));
  const auto q = random_row(size);
  const auto k = random_row(size);
  const bool interleaved = *rc::gen::arbitrary<bool>();
  const std::int64_t near = *rc::gen::inRange(0, 4096);
  const std::int64_t distance = *rc::gen::inRange(0, 4096);
  const std::int64_t shift = *rc::gen::inRange(0, 100000);
  const double here =
      dot(turned_row(q, near + distance, interleaved), turned_row(k, near, interleaved));
  const double there = dot(turned_row(q, near + distance + shift, interleaved),
                           turned_row(k, near + shift, interleaved));
  RC_ASSERT(std::abs(here - there) <= 1e-6 * std::sqrt(dot(q, q) * dot(k, k)));
}

RC_GTEST_PROP(RopeProperty, BackwardUndoesForward, ()) {
  const auto row = random_row(static_cast<std::size_t>(2 * *rc::gen::inRange(1, 70)));
  const std::int64_t position = *rc::gen::inRange(0, 1 << 20);
  auto p = one_row(row, position, *rc::gen::arbitrary<bool>());
  const Kokkos::DefaultExecutionSpace exec;
  auto made = testing::outputs_of<Description, Fwd>(exec, p, "fused");
  p.backward = true;
  p.values["dout"] = made->at("out");
  const auto after = testing::outputs_of<Description, Bwd>(exec, p, "fused")->at("dx");
  for (std::size_t i = 0; i < row.size(); ++i) RC_ASSERT(std::abs(after[i] - row[i]) <= 1e-6F);
}

// theta 10000 at head_dim 8; theta 500000 at head_dim 128 with the scaling of LLaMA 3.1 (8, 1, 4,
// 8192): the formulas of transformers' modeling_rope_utils.py, worked out apart from this code.
TEST(Rope, FrequenciesAreThoseOfLlama) {
  const std::vector<double> plain = frequencies({}, 8);
  ASSERT_EQ(plain.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(plain[i], std::pow(10.0, -static_cast<double>(i)), 1e-16);

  FrequencyArgs llama3{.theta = 500000.0, .scaling = Scaling::llama3};
  for (const AnglePrecision precision : {AnglePrecision::f64, AnglePrecision::f32}) {
    llama3.precision = precision;
    const std::vector<double> scaled = frequencies(llama3, 128);
    const auto expect = [&](std::size_t pair, double value) {
      EXPECT_NEAR(scaled[pair] / value, 1.0, precision == AnglePrecision::f64 ? 1e-14 : 1e-6)
          << pair;
    };
    expect(0, 1.0);
    expect(1, 0.8146172338565447);  // short waves are kept
    expect(28, 0.003211445994752591);
    expect(29, 0.002166570763503359);  // between
    expect(32, 0.0005248461609929547);
    expect(63, 3.068925988914511e-07);  // long ones are stretched by the factor
  }
}

TEST(Rope, TheCacheHoldsCosinesAndSines) {
  using Exec = Kokkos::DefaultHostExecutionSpace;
  const Exec exec;
  for (const AnglePrecision precision : {AnglePrecision::f64, AnglePrecision::f32}) {
    const FrequencyArgs args{.precision = precision};
    const Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> cache("test::cache", 3, 64);
    const std::vector<std::int64_t> positions{0, -7, 1000003};
    build_cache(exec, args, TensorRef<2>(cache), positions.data());
    exec.fence("test::fence");
    const std::vector<double> frequency = frequencies(args, 64);
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t i = 0; i < 32; ++i) {
        const double angle = precision == AnglePrecision::f64
                                 ? static_cast<double>(positions[r]) * frequency[i]
                                 : static_cast<double>(static_cast<float>(positions[r]) *
                                                       static_cast<float>(frequency[i]));
        EXPECT_EQ(cache(r, i), static_cast<float>(std::cos(angle)));
        EXPECT_EQ(cache(r, 32 + i), static_cast<float>(std::sin(angle)));
      }
    }
  }
}

/// Views for the direct calls below.
struct Small {
  using Exec = Kokkos::DefaultHostExecutionSpace;
  using View = Kokkos::View<float****, Kokkos::LayoutRight, Kokkos::HostSpace>;
  Exec exec;
  View x{"test::x", 2, 3, 5, 40};
  View out{"test::out", 2, 3, 5, 40};
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> cache{"test::cache", 8, 40};
  ForwardArgs args;

  Small() {
    testing::fill(std::span(x.data(), x.size()), 3, Dtype::f32);
    build_cache(exec, {}, TensorRef<2>(cache));
    args.x = x;
    args.out = out;
    args.cache = cache;
  }
  Status run(const std::string& variant) { return testing::run_forward(exec, args, {variant, {}}); }
};

TEST(Rope, StridedTensorsGiveTheSameBitsAsDenseOnes) {
  Small dense;
  ASSERT_TRUE(dense.run("fused").is_ok());
  for (const char* variant : {"fused", "stream"}) {
    Small strided;
    const Small::View wide("test::wide", 3, 4, 6, 43);  // rows that start anywhere
    const auto inner =
        Kokkos::subview(wide, std::pair(1, 3), std::pair(1, 4), std::pair(0, 5), std::pair(3, 43));
    Kokkos::deep_copy(inner, strided.x);
    strided.args.x = inner;
    strided.args.out = inner;
    if (!strided.run(variant).is_ok()) continue;
    for (std::size_t i = 0; i < dense.out.size(); ++i) {
      const std::size_t b = i / 600, h = i / 200 % 3, s = i / 40 % 5, d = i % 40;
      ASSERT_EQ(inner(b, h, s, d), dense.out(b, h, s, d)) << variant << " at " << i;
    }
    EXPECT_EQ(wide(0, 0, 0, 0), 0.0F);
    EXPECT_EQ(wide(1, 1, 0, 2), 0.0F);
  }
}

TEST(Rope, APositionThatTheCacheLacksGivesNaN) {
  const std::vector<std::int64_t> positions{0, 1, 2, 3, 8, -1, 5, 6, 7, 0};
  for (const char* variant : {"naive", "fused"}) {
    Small small;
    small.args.positions = positions.data();
    ASSERT_TRUE(small.run(variant).is_ok());
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t s = 0; s < 5; ++s) {
        const std::int64_t position = positions[b * 5 + s];
        EXPECT_EQ(std::isnan(small.out(b, 1, s, 7)), position < 0 || position >= 8) << variant;
      }
    }
  }
}

TEST(Rope, FirstPositionShiftsEverySequence) {
  Small small;
  small.args.first_position = 3;
  ASSERT_TRUE(small.run("fused").is_ok());
  Small explicit_ones;
  const std::vector<std::int64_t> positions{3, 4, 5, 6, 7, 3, 4, 5, 6, 7};
  explicit_ones.args.positions = positions.data();
  ASSERT_TRUE(explicit_ones.run("fused").is_ok());
  for (std::size_t i = 0; i < small.out.size(); ++i) {
    ASSERT_EQ(small.out.data()[i], explicit_ones.out.data()[i]);
  }
}

TEST(Rope, WhatDoesNotFitIsRefused) {
  const auto refused = [](const auto& change, const std::string& message) {
    Small small;
    change(small);
    const std::string told = test::message_of([&] { (void)small.run("fused"); });
    EXPECT_TRUE(test::contains(told, message));
  };
  refused([](Small& s) { s.args.x.extent[3] = 39; }, "head_dim 39: expected an even number");
  refused([](Small& s) { s.args.out.extent[1] = 4; }, "out: holds shape (2, 4, 5, 40)");
  refused([](Small& s) { s.args.out.dtype = Dtype::f16; }, "out: holds f16, expected f32");
  refused([](Small& s) { s.args.cache.extent[1] = 38; }, "cache: holds shape (8, 38)");
  refused([](Small& s) { s.args.cache.stride[0] = 41; }, "cache: holds shape");
  refused([](Small& s) { s.args.x2 = s.args.x; }, "out2: holds shape (0, 0, 0, 0)");

  EXPECT_THROW((void)frequencies({}, 7), InputError);
  EXPECT_THROW((void)frequencies({}, max_head_dim + 2), InputError);
  EXPECT_THROW((void)frequencies({.theta = 0.0}, 8), InputError);
  EXPECT_THROW((void)frequencies({.theta = std::nan("")}, 8), InputError);
  EXPECT_THROW((void)frequencies({.scaling = Scaling::llama3, .high_freq_factor = 1.0}, 8),
               InputError);
  EXPECT_THROW((void)frequencies({.scaling = Scaling::llama3, .factor = -8.0}, 8), InputError);
}

}  // namespace
}  // namespace katt::rope
