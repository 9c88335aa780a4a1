#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "ops/rmsnorm/bench/case.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"
#include "testing/fill.hpp"

namespace katt::rmsnorm {
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

std::unique_ptr<ProblemData> problem(std::int64_t tokens, std::int64_t hidden, Dtype dtype,
                                     const Options& options, std::uint64_t seed) {
  auto data = std::make_unique<ProblemData>();
  data->shape.tokens = tokens;
  data->shape.hidden = hidden;
  data->shape.dtype = dtype;
  data->shape.eps = 1e-5;
  data->options = options;
  const auto values = [&](std::int64_t count, std::uint64_t stream) {
    std::vector<float> filled(static_cast<std::size_t>(count));
    testing::fill(filled, seed * 8 + stream, dtype);
    return filled;
  };
  data->x = values(tokens * hidden, 1);
  data->weight = values(hidden, 2);
  if (options.residual) {
    (options.backward ? data->dresidual_out : data->residual) = values(tokens * hidden, 3);
  }
  if (options.backward) data->dout = values(tokens * hidden, 4);
  data->link();
  return data;
}

/// Runs a variant of the pass that the problem names; nothing where it is refused here.
std::optional<DeviceOutput> normalised(const ProblemData& data, const Place& place,
                                       const std::string& variant) {
  const DeviceProblem device(data, place.backend);
  DeviceOutput output(data.shape, data.options, place.backend);
  output.poison();
  return visit_backend(
      place.backend, place.threads, [&](const auto& exec) -> std::optional<DeviceOutput> {
        const Config config{variant, {}};
        const auto run = [&](auto args, const auto& launch) {
          output.link(args);
          const bench::Buffer workspace("test::workspace", place.backend,
                                        workspace_bytes(exec, args, config));
          const Status status = launch(args, workspace.workspace());
          exec.fence("test::fence");
          return status.is_ok();
        };
        const bool done = data.options.backward
                              ? run(device.args<BackwardArgs>(),
                                    [&](const auto& args, Workspace w) {
                                      return backward(exec, args, config, w);
                                    })
                              : run(device.args<ForwardArgs>(), [&](const auto& args, Workspace w) {
                                  return forward(exec, args, config, w);
                                });
        if (!done) return std::nullopt;
        return output;
      });
}

const std::vector<Options> all_options{{},
                                       {.residual = true},
                                       {.quantise = true},
                                       {.residual = true, .quantise = true},
                                       {.backward = true},
                                       {.backward = true, .residual = true}};

TEST(Rmsnorm, EveryVariantMatchesTheReference) {
  std::uint64_t seed = 1;
  int compared = 0;
  // Powers of two, primes, length 1, whole vectors and tails, more rows than one block of dweight,
  // rows that are streamed with a tail, and rows too long for the scratch of `stream`.
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes{
      {1, 1},   {1, 64},    {2, 8},    {17, 31}, {37, 384}, {5, 1000},
      {64, 97}, {300, 128}, {3, 4096}, {9, 96},  {3, 16416}};
  for (const auto& [tokens, hidden] : shapes) {
    for (const Dtype dtype : all_dtypes) {
      for (const Options& options : all_options) {
        const auto data = problem(tokens, hidden, dtype, options, ++seed);
        const Reference reference(*data);
        for (const Place& place : places()) {
          for (const char* variant : {"naive", "fused", "stream"}) {
            const auto output = normalised(*data, place, variant);
            if (!output) continue;
            const bench::Errors errors = reference.compare(*output);
            ASSERT_TRUE(errors.status.is_ok())
                << variant << " on " << name_of(place.backend) << " " << place.threads << ", "
                << name_of(dtype) << ", " << tokens << " x " << hidden << ", backward "
                << options.backward << ", residual " << options.residual << ", quantise "
                << options.quantise << ": " << errors.status.reason();
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GE(compared, 11 * 3 * 6 * 4);
}

TEST(Rmsnorm, GradientsOfTheReferenceAreThoseOfFiniteDifferences) {
  constexpr std::int64_t tokens = 3;
  constexpr std::int64_t hidden = 7;
  // Few digits, so that a step is exact.
  const auto data = problem(tokens, hidden, Dtype::bf16, {.backward = true}, 21);
  data->shape.dtype = Dtype::f32;
  const std::vector<std::int64_t> rows{0, 1, 2};
  const std::vector<std::int64_t> columns{0, 1, 2, 3, 4, 5, 6};
  const Gradients gradients = reference_backward(data->shape, rows, columns);
  constexpr float step = 0x1p-10F;
  const auto slope = [&](float& value) {
    const auto loss = [&](float shift) {
      value += shift;
      double sum = 0;
      for (const std::int64_t row : rows) {
        const ForwardRow made = reference_forward(data->shape, row);
        for (std::size_t j = 0; j < hidden; ++j) {
          sum += made.out[j] * data->dout[static_cast<std::size_t>(row * hidden) + j];
        }
      }
      value -= shift;
      return sum;
    };
    return (loss(step) - loss(-step)) / (2.0 * step);
  };
  for (std::size_t row = 0; row < tokens; ++row) {
    for (std::size_t j = 0; j < hidden; ++j) {
      EXPECT_NEAR(slope(data->x[row * hidden + j]), gradients.dx[row][j], 1e-5);
    }
  }
  for (std::size_t j = 0; j < hidden; ++j) {
    EXPECT_NEAR(slope(data->weight[j]), gradients.dweight[j], 1e-9);
  }
}

TEST(Rmsnorm, ThreadsDoNotChangeABit) {
  for (const char* variant : {"naive", "fused", "stream"}) {
    for (const Options& options : {Options{.backward = true}, Options{.residual = true}}) {
      for (const std::int64_t hidden : {67, 96}) {
        const auto data = problem(5003, hidden, Dtype::bf16, options, 31);
        std::vector<float> out;
        std::vector<float> other;
        for (const Place& place : hosts) {
          const auto output = normalised(*data, place, variant);
          if (!output && std::string(variant) == "stream") continue;  // built for AVX-512 alone
          ASSERT_TRUE(output) << variant;
          const std::vector<float> second =
              options.backward ? output->dweight.download() : output->residual_out.download();
          if (out.empty()) {
            out = output->out.download();
            other = second;
          }
          EXPECT_EQ(output->out.download(), out) << variant << " " << place.threads;
          EXPECT_EQ(second, other) << variant << " " << place.threads;
        }
      }
    }
  }
}

/// out of a problem by the fused kernel.
std::vector<float> out_of(const ProblemData& data, const Place& place = places().front()) {
  return normalised(data, place, "fused")->out.download();
}

RC_GTEST_PROP(RmsnormProperty, ScalingARowByAPowerOfTwoChangesNoBit, ()) {
  const auto hidden = *rc::gen::inRange<std::int64_t>(1, 200);
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const Options options{.backward = *rc::gen::arbitrary<bool>()};
  const auto data = problem(2, hidden, Dtype::f32, options, seed);
  data->shape.eps = 0;
  for (float& value : data->x)
    value += std::copysign(0.5F, value);  // none too small beside the others
  const std::vector<float> out = out_of(*data);
  const int exponent = *rc::gen::inRange(-120, 120);
  for (float& value : data->x) value = std::ldexp(value, exponent);
  std::vector<float> scaled = out_of(*data);
  // dx is of degree −1 in x; where it leaves the range of f32 there is nothing to compare.
  if (options.backward) {
    for (float& value : scaled) value = std::ldexp(value, exponent);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (options.backward && std::abs(exponent) > 90) break;
    RC_ASSERT(scaled[i] == out[i]);
  }
}

RC_GTEST_PROP(RmsnormProperty, TheOutputHasUnitMeanSquare, ()) {
  const auto hidden = *rc::gen::inRange<std::int64_t>(1, 500);
  const auto data = problem(1, hidden, Dtype::f32, {}, *rc::gen::arbitrary<std::uint32_t>());
  data->shape.eps = 0;
  data->weight.assign(data->weight.size(), 1.0F);
  data->link();
  double sum = 0;
  for (const float y : out_of(*data)) sum += double{y} * double{y};
  RC_ASSERT(std::abs(sum / static_cast<double>(hidden) - 1.0) < 1e-5);
}

/// The largest relative difference from the reference over rows of f32.
void expect_relative(const ProblemData& data, const Place& place, const char* variant,
                     double limit) {
  const auto output = normalised(data, place, variant);
  if (!output && std::string(variant) == "stream") return;  // built for AVX-512 alone
  ASSERT_TRUE(output) << variant;
  const std::vector<float> got = output->out.download();
  const std::vector<std::int64_t> no_columns;
  for (std::int64_t row = 0; row < data.shape.tokens; ++row) {
    const std::vector<double> expected =
        data.options.backward ? reference_backward(data.shape, {&row, 1}, no_columns).dx.front()
                              : reference_forward(data.shape, row).out;
    double largest = 0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    for (std::size_t j = 0; j < expected.size(); ++j) {
      const auto value =
          static_cast<double>(got[static_cast<std::size_t>(row * data.shape.hidden) + j]);
      ASSERT_NEAR(value, expected[j], limit * largest) << "row " << row << " column " << j;
    }
  }
}

TEST(Rmsnorm, RowsOfAnyMagnitudeKeepTheirDigits) {
  const std::vector<float> magnitudes{1e-36F, 1e-30F, 1e-18F, 1e-10F, 1e10F,
                                      1e18F,  1e20F,  1e30F,  9e37F};
  for (const bool backward : {false, true}) {
    for (const std::size_t hidden : {333, 336}) {  // with a tail; streamed
      const auto data =
          problem(static_cast<std::int64_t>(magnitudes.size()), static_cast<std::int64_t>(hidden),
                  Dtype::f32, {.backward = backward}, 41);
      data->shape.eps = 0;
      for (std::size_t i = 0; i < data->x.size(); ++i) data->x[i] *= magnitudes[i / hidden];
      // Gradients of huge rows are tiny: bring them back into range.
      for (std::size_t i = 0; i < data->dout.size(); ++i) {
        data->dout[i] *= std::clamp(magnitudes[i / hidden], 1.0F, 1e18F);
      }
      for (const Place& place : places()) {
        for (const char* variant : {"fused", "stream"}) {
          expect_relative(*data, place, variant, 2e-6);
        }
      }
    }
  }
  // The largest values of the 16-bit dtypes.
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    const float most = dtype == Dtype::f16 ? 65504.0F : 0x1.FEp127F;
    const auto data = problem(2, 4099, dtype, {}, 43);
    for (std::size_t i = 0; i < data->x.size(); ++i) data->x[i] = i % 3 == 0 ? most : -most;
    data->weight.assign(data->weight.size(), 1.0F);
    data->link();
    for (const float y : out_of(*data)) EXPECT_EQ(std::abs(y), 1.0F);
  }
}

TEST(Rmsnorm, NanAndInfinityStayInTheirRow) {
  const auto data = problem(3, 40, Dtype::f32, {}, 51);
  data->x[7] = std::numeric_limits<float>::quiet_NaN();
  data->x[47] = std::numeric_limits<float>::infinity();
  const std::vector<float> out = out_of(*data);
  for (std::size_t j = 0; j < 40; ++j) {
    EXPECT_TRUE(std::isnan(out[j]));
    EXPECT_TRUE(j == 7 ? std::isnan(out[40 + j]) : out[40 + j] == 0.0F);
    EXPECT_TRUE(std::isfinite(out[80 + j]));
  }
}

TEST(Rmsnorm, AFusedResidualChangesNoBit) {
  for (const Dtype dtype : all_dtypes) {
    const auto fused = problem(9, 131, dtype, {.residual = true}, 61);
    const auto output = normalised(*fused, places().front(), "fused");
    const auto apart = problem(9, 131, dtype, {}, 61);
    apart->x = output->residual_out.download();
    apart->link();
    EXPECT_EQ(output->out.download(), out_of(*apart));
  }
}

/// Views for the direct calls below.
struct Small {
  using Exec = Kokkos::DefaultHostExecutionSpace;
  using View = Kokkos::View<bf16**, Kokkos::LayoutRight, Kokkos::HostSpace>;
  static constexpr std::size_t tokens = 6;
  static constexpr std::size_t hidden = 75;
  Exec exec;
  View x{"test::x", tokens, hidden};
  View residual{"test::residual", tokens, hidden};
  View out{"test::out", tokens, hidden};
  View residual_out{"test::residual_out", tokens, hidden};
  Kokkos::View<bf16*, Kokkos::HostSpace> weight{"test::weight", hidden};
  Kokkos::View<std::int8_t**, Kokkos::LayoutRight, Kokkos::HostSpace> out_q{"test::out_q", tokens,
                                                                            hidden};
  Kokkos::View<float*, Kokkos::HostSpace> scale{"test::scale", tokens};
  ForwardArgs args;

  Small() {
    const auto fill = [](const auto& view, std::uint64_t seed) {
      std::vector<float> values(view.size());
      testing::fill(values, seed, Dtype::bf16);
      for (std::size_t i = 0; i < values.size(); ++i) view.data()[i] = bf16(values[i]);
    };
    fill(x, 1);
    fill(residual, 2);
    fill(weight, 3);
    args.x = x;
    args.weight = weight;
    args.residual = residual;
    args.out = out;
    args.residual_out = residual_out;
  }
  Status run(const std::string& variant) {
    const Kokkos::View<std::byte*, Kokkos::HostSpace> workspace(
        "test::workspace", workspace_bytes(exec, args, {variant, {}}));
    const Status status = forward(exec, args, {variant, {}}, workspace);
    exec.fence("test::fence");
    return status;
  }
};

template <class View>
std::vector<float> values_of(const View& view) {
  std::vector<float> values;
  for (std::size_t i = 0; i < view.extent(0); ++i) {
    for (std::size_t j = 0; j < view.extent(1); ++j)
      values.push_back(static_cast<float>(view(i, j)));
  }
  return values;
}

TEST(Rmsnorm, InPlaceAndStridedGiveTheSameBits) {
  for (const char* variant : {"naive", "fused", "stream"}) {
    Small dense;
    if (!dense.run(variant).is_ok()) continue;

    Small in_place;
    in_place.args.out = in_place.x;
    in_place.args.residual_out = in_place.residual;
    ASSERT_TRUE(in_place.run(variant).is_ok());
    EXPECT_EQ(values_of(in_place.x), values_of(dense.out)) << variant;
    EXPECT_EQ(values_of(in_place.residual), values_of(dense.residual_out)) << variant;

    Small strided;
    const Small::View wide("test::wide", Small::tokens, Small::hidden + 6);
    const auto inner = Kokkos::subview(wide, Kokkos::ALL,
                                       std::pair<std::size_t, std::size_t>(3, 3 + Small::hidden));
    Kokkos::deep_copy(inner, strided.x);
    strided.args.x = inner;
    strided.args.out = inner;
    ASSERT_TRUE(strided.run(variant).is_ok());
    EXPECT_EQ(values_of(inner), values_of(dense.out)) << variant;
    EXPECT_EQ(static_cast<float>(wide(2, 2)), 0.0F);
    EXPECT_EQ(static_cast<float>(wide(2, 3 + Small::hidden)), 0.0F);
  }
}

// s_x = 127 / max(max |x|, 1e-5), x_q = clamp(round(x · s_x), −128, 127), rounding half to even, of
// the output as it is stored: what ternary linear would make of it.
TEST(Rmsnorm, FusedQuantisationIsThatOfTheStoredOutput) {
  for (const char* variant : {"naive", "fused", "stream"}) {
    for (const bool keep : {true, false}) {
      Small plain;
      if (!plain.run(variant).is_ok()) continue;
      Small small;
      small.args.out_q = small.out_q.data();
      small.args.out_q_scale = small.scale.data();
      if (!keep) small.args.out = {};
      ASSERT_TRUE(small.run(variant).is_ok());
      if (keep) {
        EXPECT_EQ(values_of(small.out), values_of(plain.out)) << variant;
      }
      for (std::size_t i = 0; i < Small::tokens; ++i) {
        float most = 1e-5F;
        for (std::size_t j = 0; j < Small::hidden; ++j) {
          most = std::max(most, std::abs(static_cast<float>(plain.out(i, j))));
        }
        EXPECT_EQ(small.scale(i), 127.0F / most);
        for (std::size_t j = 0; j < Small::hidden; ++j) {
          const float q = std::nearbyint(static_cast<float>(plain.out(i, j)) * small.scale(i));
          EXPECT_EQ(small.out_q(i, j), static_cast<int>(std::clamp(q, -128.0F, 127.0F))) << variant;
        }
      }
    }
  }
}

TEST(Rmsnorm, NoRowsGiveAZeroWeightGradient) {
  const auto data = problem(0, 33, Dtype::f32, {.backward = true}, 71);
  for (const char* variant : {"naive", "fused"}) {
    EXPECT_EQ(normalised(*data, places().front(), variant)->dweight.download(),
              std::vector<float>(33, 0.0F));
  }
}

TEST(Rmsnorm, WhatDoesNotFitIsRefused) {
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
  refused([](Small& s) { s.args.weight.extent[0] = 74; },
          "weight: holds shape (74), expected (75)");
  refused([](Small& s) { s.args.out.extent[0] = 5; }, "out: holds shape (5, 75), expected (6, 75)");
  refused([](Small& s) { s.args.residual_out = {}; }, "residual_out: holds shape (0, 0)");
  refused([](Small& s) { s.args.residual = {}; }, "residual_out: given without a residual");
  refused([](Small& s) { s.args.residual.dtype = Dtype::f16; },
          "residual: holds f16, expected bf16");
  refused([](Small& s) { s.args.out = {}; }, "out: missing");
  refused([](Small& s) { s.args.out_q = s.out_q.data(); }, "out_q and out_q_scale: one is missing");
  refused([](Small& s) { s.args.eps = -1.0F; }, "eps -1");
  refused([](Small& s) { s.args.eps = std::nanf(""); }, "eps nan");
  Small small;
  EXPECT_THROW((void)forward(small.exec, small.args, {"flash", {}}, {}), InputError);
  EXPECT_THROW((void)forward(small.exec, small.args, {"naive", {}}, {}), InputError);
  EXPECT_EQ(forward(small.exec, small.args, {"fused", {8, 8}}, {}).code(), Status::Code::skipped);
}

}  // namespace
}  // namespace katt::rmsnorm
