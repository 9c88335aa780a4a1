#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "core/error.hpp"
#include "ops/rope/bench/case.hpp"
#include "ops/rope/rope.hpp"
#include "testing/fill.hpp"

namespace katt::rope {
namespace {

struct Place {
  Backend backend;
  int threads;
};

std::vector<Place> places() {
  std::vector<Place> built;
  for (const Place place :
       {Place{Backend::serial, 1}, Place{Backend::openmp, 2}, Place{Backend::cuda, 0}}) {
    if (is_built(place.backend)) built.push_back(place);
  }
  return built;
}

/// Where the same bits are expected.
const std::vector<Place> hosts{
    {Backend::serial, 1}, {Backend::openmp, 1}, {Backend::openmp, 2}, {Backend::openmp, 3}};

struct Shape {
  std::int64_t batch, heads, kv_heads, seq, head_dim;
};
// A power of two, a prime, length 1, whole vectors, tails, the largest head_dim.
const std::vector<Shape> shapes{{1, 1, 0, 1, 2},   {2, 3, 1, 17, 64}, {1, 4, 2, 33, 128},
                                {1, 2, 0, 1, 80},  {3, 1, 5, 7, 6},   {2, 2, 2, 64, 32},
                                {1, 1, 1, 5, 512}, {2, 1, 1, 130, 96}};

std::unique_ptr<ProblemData> problem(const Shape& shape, Dtype dtype, std::uint64_t seed) {
  auto data = std::make_unique<ProblemData>();
  HostProblem& p = data->shape;
  p.batch = shape.batch;
  p.heads = shape.heads;
  p.seq = shape.seq;
  p.head_dim = shape.head_dim;
  data->kv_heads = shape.kv_heads;
  data->dtype = dtype;
  data->x.resize(static_cast<std::size_t>(p.batch * p.heads * p.seq * p.head_dim));
  data->x2.resize(static_cast<std::size_t>(p.batch * shape.kv_heads * p.seq * p.head_dim));
  testing::fill(data->x, seed, dtype);
  testing::fill(data->x2, seed + 1, dtype);
  data->link();
  return data;
}

/// Runs one pass of a variant; nothing where it is refused here.
template <class Args>
std::optional<DeviceOutput> turned(const ProblemData& data, const Place& place,
                                   const std::string& variant, bench::HeadLayout layout,
                                   bool in_place) {
  const DeviceProblem device(data, place.backend, place.threads, layout, !in_place);
  DeviceOutput output(data, place.backend, layout, in_place);
  output.poison();
  Tensors tensors = device.tensors();
  output.link(tensors);
  const Args args = tensors.args<Args>();
  return visit_backend(place.backend, place.threads,
                       [&](const auto& exec) -> std::optional<DeviceOutput> {
                         const Config config{variant, {}};
                         const bench::Buffer workspace("test::workspace", place.backend,
                                                       workspace_bytes(exec, args, config));
                         Status status;
                         if constexpr (std::is_same_v<Args, ForwardArgs>) {
                           status = forward(exec, args, config, workspace.workspace());
                         } else {
                           status = backward(exec, args, config, workspace.workspace());
                         }
                         exec.fence("test::fence");
                         if (!status.is_ok()) return std::nullopt;
                         return output;
                       });
}

TEST(Rope, EveryVariantMatchesTheReference) {
  std::uint64_t seed = 1;
  int compared = 0;
  int problems = 0;
  for (const Shape& shape : shapes) {
    for (const Dtype dtype : all_dtypes) {
      // Four of the sixteen combinations each time; all of them come up.
      for (int options = problems++ % 4; options < 16; options += 4) {
        const auto data = problem(shape, dtype, seed += 2);
        data->shape.interleaved = (options & 1) != 0;
        data->shape.backward = (options & 2) != 0;
        const bool in_place = (options & 4) != 0;
        const auto layout = (options & 8) != 0 ? bench::HeadLayout::bshd : bench::HeadLayout::bhsd;
        if (seed % 4 == 1) {
          data->shape.frequencies = {.theta = 500000.0, .scaling = Scaling::llama3};
          for (std::int64_t i = 0; i < shape.batch * shape.seq; ++i) {
            data->positions.push_back(static_cast<std::int64_t>(
                testing::uniform(seed, static_cast<std::uint64_t>(i)) * 200000));
          }
          data->link();
        }
        const Reference reference(*data);
        for (const Place& place : places()) {
          for (const char* variant : {"naive", "fused", "stream"}) {
            const auto output = data->shape.backward
                                    ? turned<BackwardArgs>(*data, place, variant, layout, in_place)
                                    : turned<ForwardArgs>(*data, place, variant, layout, in_place);
            if (!output) continue;
            const bench::Errors errors = reference.compare(*output);
            ASSERT_TRUE(errors.status.is_ok())
                << variant << " on " << name_of(place.backend) << " " << place.threads << ", "
                << name_of(dtype) << ", head_dim " << shape.head_dim << ", options " << options
                << ": " << errors.status.reason();
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GE(compared, 8 * 3 * 4 * 4);
}

TEST(Rope, TheGradientOfTheReferenceIsThatOfFiniteDifferences) {
  for (const bool interleaved : {false, true}) {
    const auto data = problem({1, 2, 0, 5, 8}, Dtype::bf16, 11);
    data->shape.interleaved = interleaved;
    const std::vector<float> dout = problem({1, 2, 0, 5, 8}, Dtype::bf16, 12)->x;
    HostProblem backward = data->shape;
    backward.x = dout;
    backward.backward = true;
    const RowIndex at{0, 1, 3};
    const std::size_t first = (1 * 5 + 3) * 8;
    const std::vector<double> gradient = reference_row(backward, at);
    for (std::size_t i = 0; i < 8; ++i) {
      const auto loss = [&](float shift) {
        data->x[first + i] += shift;
        const std::vector<double> out = reference_row(data->shape, at);
        data->x[first + i] -= shift;
        return std::inner_product(out.begin(), out.end(), dout.begin() + first, 0.0);
      };
      EXPECT_NEAR((loss(0x1p-8F) - loss(-0x1p-8F)) / 0x1p-7, gradient[i], 1e-12) << i;
    }
  }
}

/// One row of values turned to a position by the fused kernel in f32.
std::vector<float> turned_row(const std::vector<float>& row, std::int64_t position,
                              bool interleaved) {
  const Place place = places().front();
  ProblemData data;
  data.shape.batch = data.shape.heads = data.shape.seq = 1;
  data.shape.head_dim = static_cast<std::int64_t>(row.size());
  data.shape.interleaved = interleaved;
  data.x = row;
  data.positions = {position};
  data.link();
  return turned<ForwardArgs>(data, place, "fused", bench::HeadLayout::bhsd, false)->out.download();
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
  const auto half = *rc::gen::inRange(1, 70);
  const auto data =
      problem({1, 2, 1, 3, 2 * half}, Dtype::f32, *rc::gen::arbitrary<std::uint32_t>());
  data->shape.interleaved = *rc::gen::arbitrary<bool>();
  const std::vector<float> before = data->x;
  const auto layout = bench::HeadLayout::bhsd;
  data->x = turned<ForwardArgs>(*data, places().front(), "fused", layout, false)->out.download();
  data->link();
  const auto after =
      turned<BackwardArgs>(*data, places().front(), "fused", layout, true)->out.download();
  for (std::size_t i = 0; i < before.size(); ++i)
    RC_ASSERT(std::abs(after[i] - before[i]) <= 1e-6F);
}

TEST(Rope, ThreadsDoNotChangeABit) {
  const auto data = problem({2, 5, 3, 257, 64}, Dtype::bf16, 5);
  std::vector<std::vector<float>> outputs;
  for (const Place& place : hosts) {
    outputs.push_back(turned<ForwardArgs>(*data, place, "fused", bench::HeadLayout::bhsd, false)
                          ->out2.download());
  }
  for (const auto& output : outputs) EXPECT_EQ(output, outputs.front());
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
  Status run(const std::string& variant) {
    const Kokkos::View<std::byte*, Kokkos::HostSpace> workspace(
        "test::workspace", workspace_bytes(exec, args, {variant, {}}));
    const Status status = forward(exec, args, {variant, {}}, workspace);
    exec.fence("test::fence");
    return status;
  }
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
    try {
      (void)small.run("fused");
      FAIL() << "expected: " << message;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  refused([](Small& s) { s.args.x.extent[3] = 39; }, "head_dim 39: expected an even number");
  refused([](Small& s) { s.args.out.extent[1] = 4; }, "out: holds shape (2, 4, 5, 40)");
  refused([](Small& s) { s.args.out.dtype = Dtype::f16; }, "out: holds f16, expected f32");
  refused([](Small& s) { s.args.cache.extent[1] = 38; }, "cache: holds shape (8, 38)");
  refused([](Small& s) { s.args.cache.stride[0] = 41; }, "cache: holds shape");
  refused([](Small& s) { s.args.x2 = s.args.x; }, "out2: holds shape (0, 0, 0, 0)");
  Small small;
  EXPECT_THROW((void)forward(small.exec, small.args, {"flash", {}}, {}), InputError);
  EXPECT_THROW((void)forward(small.exec, small.args, {"naive", {}}, {}), InputError);
  EXPECT_EQ(forward(small.exec, small.args, {"fused", {8, 8}}, {}).code(), Status::Code::skipped);

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
