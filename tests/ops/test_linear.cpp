#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "memory/tracker.hpp"
#include "ops/linear/gemm/micro.hpp"
#include "ops/linear/linear.hpp"
#include "ops/linear/linear_ref.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/linear_problem.hpp"
#include "tile/bf16/bf16_units.hpp"
#include "tile/vec/vec.hpp"

namespace katt::linear {
namespace {

using testing::ExpectedValue;
using testing::Matrix;

struct Problem {
  Dtype dtype = Dtype::f32;
  std::int64_t tokens = 0, in = 0, out = 0;
  std::vector<float> x, weight, bias, dout;

  HostProblem host() const { return {tokens, in, out, x, weight, bias, dout}; }
  std::string name() const {
    return std::string(name_of(dtype)) + " " + std::to_string(tokens) + "x" + std::to_string(in) +
           "x" + std::to_string(out) + " ";
  }
};

Problem make_problem(std::int64_t tokens, std::int64_t in, std::int64_t out, Dtype dtype) {
  return {dtype,
          tokens,
          in,
          out,
          testing::random_values(tokens * in, 1, dtype),
          testing::random_values(out * in, 2, dtype, 0.25F),
          testing::random_values(out, 3, dtype),
          testing::random_values(tokens * out, 4, dtype)};
}

struct Result {
  std::vector<float> out, dx, dweight, dbias;
  friend bool operator==(const Result&, const Result&) = default;
};

/// The variant of the backward pass beside one of the forward pass, which may have more.
template <class Exec>
std::string gradients_of(const std::string& variant) {
  const auto names = testing::names_of(backward_variants<Exec>());
  return std::find(names.begin(), names.end(), variant) != names.end() ? variant : "auto";
}

template <class Exec>
Result run(const Exec& exec, const Problem& p, const std::string& variant, std::int64_t gap = 0) {
  constexpr Backend backend = backend_of<Exec>();
  const Matrix x(backend, p.dtype, p.tokens, p.in, gap, p.x);
  const Matrix weight(backend, p.dtype, p.out, p.in, 2 * gap, p.weight);
  const Matrix dout(backend, p.dtype, p.tokens, p.out, gap, p.dout);
  const Matrix out(backend, p.dtype, p.tokens, p.out, 2 * gap);
  const Matrix dx(backend, p.dtype, p.tokens, p.in, gap);
  const Matrix dweight(backend, p.dtype, p.out, p.in, gap);
  const bench::Tensor<1> bias("bias", backend, p.dtype, {p.out});
  const bench::Tensor<1> dbias("dbias", backend, p.dtype, {p.out});
  bias.upload(p.bias.empty() ? std::vector<float>(static_cast<std::size_t>(p.out)) : p.bias);
  dbias.poison();

  ForwardArgs forward{.x = x.ref(), .weight = weight.ref(), .out = out.ref()};
  if (!p.bias.empty()) forward.bias = bias.ref();
  check(forward);
  testing::run_variant(exec, forward_variants<Exec>(), forward, {variant, {}});
  const BackwardArgs backward{.x = x.ref(),
                              .weight = weight.ref(),
                              .dout = dout.ref(),
                              .dx = dx.ref(),
                              .dweight = dweight.ref(),
                              .dbias = dbias.ref()};
  check(backward);
  testing::run_variant(exec, backward_variants<Exec>(), backward,
                       {gradients_of<Exec>(variant), {}});
  EXPECT_TRUE(out.gaps_untouched() && dx.gaps_untouched() && dweight.gaps_untouched());
  return {out.values(), dx.values(), dweight.values(), dbias.download()};
}

/// The variants that take a problem, in both passes if they have both.
template <class Exec>
std::vector<std::string> variants_for(const Exec& exec, const Problem& p) {
  const TensorRef<2> x(nullptr, p.dtype, {p.tokens, p.in});
  const TensorRef<2> weight(nullptr, p.dtype, {p.out, p.in});
  const TensorRef<2> out(nullptr, p.dtype, {p.tokens, p.out});
  const ForwardArgs forward{.x = x, .weight = weight, .out = out};
  const BackwardArgs backward{.x = x, .weight = weight, .dout = out, .dx = x, .dweight = weight};
  std::vector<std::string> names;
  for (const std::string& name : testing::names_of(forward_variants<Exec>())) {
    if (forward_variants<Exec>().supports(exec, forward, {name, {}}).is_ok() &&
        backward_variants<Exec>()
            .supports(exec, backward, {gradients_of<Exec>(name), {}})
            .is_ok()) {
      names.push_back(name);
    }
  }
  return names;
}

struct ExpectedResult {
  std::vector<ExpectedValue> out, dx, dweight, dbias;
};

ExpectedResult reference(const Problem& p) {
  const HostProblem host = p.host();
  return {testing::expect_all(p.tokens, p.out,
                              [&](auto t, auto o) { return reference_out(host, t, o, p.dtype); }),
          testing::expect_all(p.tokens, p.in,
                              [&](auto t, auto i) { return reference_dx(host, t, i, p.dtype); }),
          testing::expect_all(
              p.out, p.in, [&](auto o, auto i) { return reference_dweight(host, o, i, p.dtype); }),
          testing::expect_all(1, p.out,
                              [&](auto, auto o) { return reference_dbias(host, o, p.dtype); })};
}

void expect_reference(const Problem& p, const ExpectedResult& expected, const Result& result,
                      const std::string& what) {
  testing::expect_close(what + " out", result.out, p.out, expected.out, p.dtype);
  testing::expect_close(what + " dx", result.dx, p.in, expected.dx, p.dtype);
  testing::expect_close(what + " dweight", result.dweight, p.in, expected.dweight, p.dtype);
  testing::expect_close(what + " dbias", result.dbias, p.out, expected.dbias, p.dtype);
}

TEST(LinearReference, GradientsMatchFiniteDifferences) {
  Problem p = make_problem(3, 5, 4, Dtype::bf16);  // few digits, so that a step is exact in float
  const auto loss = [&] {
    double sum = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t) {
      for (std::int64_t o = 0; o < p.out; ++o) {
        sum += reference_out(p.host(), t, o, Dtype::f32).exact *
               p.dout[static_cast<std::size_t>(t * p.out + o)];
      }
    }
    return sum;
  };
  const ExpectedResult expected = reference(p);
  testing::expect_gradient(p.x, testing::exact_of(expected.dx), 0x1p-10F, 1e-9, loss);
  testing::expect_gradient(p.weight, testing::exact_of(expected.dweight), 0x1p-10F, 1e-9, loss);
  testing::expect_gradient(p.bias, testing::exact_of(expected.dbias), 0x1p-10F, 1e-9, loss);
}

class Linear : public ::testing::TestWithParam<Dtype> {};

TEST_P(Linear, MatchesReferenceForEveryShapeStrideVariantAndBackend) {
  const std::vector<std::array<std::int64_t, 3>> shapes{{64, 64, 64},  {7, 13, 17},   {1, 129, 33},
                                                        {33, 1, 5},    {5, 31, 1},    {1, 1, 1},
                                                        {131, 67, 97}, {3, 300, 130}, {1, 2056, 9}};
  for (const auto& [tokens, in, out] : shapes) {
    for (const bool bias : {true, false}) {
      Problem p = make_problem(tokens, in, out, GetParam());
      if (!bias) p.bias.clear();
      const ExpectedResult expected = reference(p);
      for (const std::int64_t gap : {0, 3}) {
        testing::for_each_exec([&]<class Exec>(const Exec& exec) {
          for (const std::string& variant : variants_for(exec, p)) {
            expect_reference(p, expected, run(exec, p, variant, gap),
                             p.name() + variant + " gap " + std::to_string(gap));
          }
        });
      }
    }
  }
}

// Sums of three products are rounded in blocks of rows of dweight, here of 291, 45 left over; in
// 16 bits they are those of "auto".
TEST_P(Linear, BlocksOfRoundedSumsJoin) {
  Problem p = make_problem(3, 900, 1500, GetParam());
  const Result naive = run(Kokkos::OpenMP(2), p, "naive");
  const Result fused = run(Kokkos::OpenMP(2), p, "auto");
  for (std::size_t i = 0; i < naive.dweight.size(); ++i) {
    const float limit = p.dtype == Dtype::f32 ? 1e-5F : 0.0F;
    ASSERT_LE(std::abs(naive.dweight[i] - fused.dweight[i]), limit) << i;
  }
}

TEST_P(Linear, NaiveSaysWhatMultiplies) {
  const Kokkos::OpenMP exec(2);
  const ForwardArgs forward{.x = {nullptr, GetParam(), {64, 48}},
                            .weight = {nullptr, GetParam(), {32, 48}},
                            .out = {nullptr, GetParam(), {64, 32}}};
  const BackwardArgs backward{.x = forward.x,
                              .weight = forward.weight,
                              .dout = {nullptr, GetParam(), {64, 32}},
                              .dx = {nullptr, GetParam(), {64, 48}}};
  const auto engine = [&](auto& table, const auto& args, const char* name) {
    return table.call(exec, args, {name, {}}).engine();
  };
  for (const bool back : {false, true}) {
    const auto of = [&](const char* name) {
      return back ? engine(backward_variants<Kokkos::OpenMP>(), backward, name)
                  : engine(forward_variants<Kokkos::OpenMP>(), forward, name);
    };
    EXPECT_EQ(of("naive"), GetParam() == Dtype::f32 ? "blas" : of("auto"));
  }
}

// But for "naive" and "library": OpenBLAS cuts its sums by the number of threads.
TEST_P(Linear, EqualBitsForAnyNumberOfThreads) {
  const Problem p = make_problem(517, 300, 261, GetParam());
  for (const std::string& variant : variants_for(serial_host(), p)) {
    if (variant == "naive" || variant == "library") continue;
    const Result one = run(Kokkos::OpenMP(1), p, variant);
    EXPECT_EQ(one, run(Kokkos::OpenMP(2), p, variant)) << variant;
    EXPECT_EQ(one, run(Kokkos::OpenMP(2), p, variant)) << variant << " again";
    EXPECT_EQ(one, run(serial_host(), p, variant)) << variant;
  }
}

/// Arguments without data.
ForwardArgs forward_shape(Dtype dtype, std::int64_t tokens, std::int64_t in, std::int64_t out) {
  return {.x = {nullptr, dtype, {tokens, in}},
          .weight = {nullptr, dtype, {out, in}},
          .out = {nullptr, dtype, {tokens, out}}};
}

BackwardArgs backward_shape(Dtype dtype, std::int64_t tokens, std::int64_t in, std::int64_t out) {
  return {.x = {nullptr, dtype, {tokens, in}},
          .weight = {nullptr, dtype, {out, in}},
          .dout = {nullptr, dtype, {tokens, out}},
          .dx = {nullptr, dtype, {tokens, in}},
          .dweight = {nullptr, dtype, {out, in}}};
}

/// The units of this process for bf16.
bool has(tile::bf16_panels::UnitName unit) { return tile::bf16_panels::refusal(unit).empty(); }
constexpr auto dots = tile::bf16_panels::UnitName::dot;
constexpr auto tiles = tile::bf16_panels::UnitName::amx;
/// Rows from which f32 products share a packed factor.
constexpr std::int64_t many = 8 * impl::Micro<tile::VecOf<Host>>::rows;

TEST_P(Linear, EveryVariantTakesWhatItIsFor) {
  const Host exec = serial_host();
  const bool is_f32 = GetParam() == Dtype::f32;
  const bool is_bf16 = GetParam() == Dtype::bf16;
  // With this number of tokens, on this machine.
  const auto taken = [&](const std::string& variant, std::int64_t tokens) {
    const bool is_few = tokens > 0 && tokens <= 64;
    const std::map<std::string, bool> known{{"naive", true},
                                            {"fused", true},
                                            {"packed", true},
                                            {"library", true},
                                            {"skinny", is_few},
                                            {"shared", is_f32 && tokens >= many},
                                            {"amx", is_bf16 && has(tiles)},
                                            {"avx512_bf16", is_bf16 && has(dots)},
                                            {"packed_avx512_bf16", is_bf16 && has(dots)},
                                            {"skinny_avx512_bf16", is_bf16 && is_few && has(dots)}};
    return known.at(variant);
  };
  for (const std::int64_t tokens : {1, 2, 31, 64, 65, 300}) {
    const auto forward = forward_shape(GetParam(), tokens, 131, 300);
    const auto backward = backward_shape(GetParam(), tokens, 131, 300);
    for (const std::string& name : testing::names_of(forward_variants<Host>())) {
      EXPECT_EQ(forward_variants<Host>().supports(exec, forward, {name, {}}).is_ok(),
                taken(name, tokens))
          << name << " forward, " << tokens << " tokens";
      EXPECT_EQ(backward_variants<Host>().supports(exec, backward, {name, {}}).is_ok(),
                taken(name, tokens))
          << name << " backward, " << tokens << " tokens";
    }
  }
}

TEST_P(Linear, AutoIsTheEngineOfGemm) {
  const Host exec = serial_host();
  const auto chosen = [&](std::int64_t tokens) {
    return forward_variants<Host>()
        .resolve(exec, forward_shape(GetParam(), tokens, 48, 32), {})
        .variant;
  };
  const auto chosen_back = [&](std::int64_t tokens) {
    return backward_variants<Host>()
        .resolve(exec, backward_shape(GetParam(), tokens, 48, 300), {})
        .variant;
  };
  using tile::bf16_panels::UnitName;
  const bool is_f32 = GetParam() == Dtype::f32;
  const UnitName unit = GetParam() == Dtype::bf16 ? tile::bf16_panels::unit() : UnitName::none;
  const auto on = [&](const char* vectors, const char* by_dots, const char* by_tiles) {
    return unit == dots ? by_dots : unit == tiles ? by_tiles : vectors;
  };
  const char* one = has(dots) ? "skinny_avx512_bf16" : "skinny";
  EXPECT_EQ(chosen(2), on("skinny", "skinny_avx512_bf16", one));
  EXPECT_EQ(chosen(64), on("skinny", "skinny_avx512_bf16", "amx"));
  EXPECT_EQ(chosen(65),
            on(is_f32 && many <= 65 ? "shared" : "packed", "packed_avx512_bf16", "amx"));
  EXPECT_EQ(chosen(300), on(is_f32 ? "shared" : "packed", "packed_avx512_bf16", "amx"));
  EXPECT_EQ(chosen_back(12), on("skinny", "skinny_avx512_bf16", "skinny"));
  const char* packed = is_f32 && many <= 64 ? "shared" : "packed";
  EXPECT_EQ(chosen_back(64),
            on(tile::lanes_v<Host> == 8 ? packed : "skinny", "skinny_avx512_bf16", "amx"));
  EXPECT_EQ(chosen_back(300), on(is_f32 ? "shared" : "packed", "packed_avx512_bf16", "amx"));
  // dx has 300 rows, dweight 20: two engines of one unit.
  const auto both = backward_shape(GetParam(), 300, 48, 20);
  EXPECT_EQ(backward_variants<Host>().resolve(exec, both, {}).variant,
            on(is_f32 ? "fused" : "packed", "packed_avx512_bf16", "amx"));
  EXPECT_EQ(backward_variants<Host>().call(exec, both, {"fused", {}}).engine(),
            is_f32 ? "shared+packed" : tile::vector_name);
}

TEST(LinearTest, AnEngineSaysWhyNot) {
  const auto why = [](auto& table, const auto& args, const char* name) {
    return table.supports(serial_host(), args, {name, {}}).reason();
  };
  auto& forward = forward_variants<Host>();
  auto& backward = backward_variants<Host>();
  const auto square = forward_shape(Dtype::f32, 8, 8, 8);
  for (const char* name : {"amx", "avx512_bf16", "packed_avx512_bf16", "skinny_avx512_bf16"}) {
    EXPECT_FALSE(why(forward, square, name).empty()) << name;
  }
  EXPECT_EQ(why(forward, forward_shape(Dtype::f32, 65, 8, 8), "skinny"),
            "takes products of 1 to 64 tokens");
  EXPECT_EQ(why(backward, backward_shape(Dtype::f32, 65, 8, 8), "skinny"),
            "dx: takes products of 1 to 64 tokens");
  EXPECT_EQ(why(backward, backward_shape(Dtype::f32, 300, 8, 9), "shared"),
            "dweight: takes products of many rows into f32, and gated ones");
}

TEST_P(Linear, AllocatesNothing) {
  memory::install();
  const Problem p = make_problem(37, 50, 20, GetParam());
  using Exec = Kokkos::DefaultHostExecutionSpace;
  const Exec exec;
  const Matrix x(Backend::openmp, p.dtype, p.tokens, p.in, 0, p.x);
  const Matrix weight(Backend::openmp, p.dtype, p.out, p.in, 0, p.weight);
  const Matrix out(Backend::openmp, p.dtype, p.tokens, p.out);
  const ForwardArgs args{.x = x.ref(), .weight = weight.ref(), .out = out.ref()};
  for (const std::string& variant : variants_for(exec, p)) {
    const bench::Buffer workspace(
        "workspace", Backend::openmp,
        forward_variants<Exec>().workspace_bytes(exec, args, {variant, {}}));
    const memory::Scope scope;
    EXPECT_TRUE(forward(exec, args, {variant, {}}, workspace.workspace()).is_ok());
    EXPECT_EQ(scope.peak_bytes(), 0U) << variant;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Linear, ::testing::ValuesIn(all_dtypes),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(LinearTest, AGradientThatIsLeftOutIsNotComputed) {
  const Problem p = make_problem(9, 8, 7, Dtype::f32);
  const Host exec = serial_host();
  const Matrix x(Backend::serial, p.dtype, p.tokens, p.in, 0, p.x);
  const Matrix weight(Backend::serial, p.dtype, p.out, p.in, 0, p.weight);
  const Matrix dout(Backend::serial, p.dtype, p.tokens, p.out, 0, p.dout);
  const Matrix dx(Backend::serial, p.dtype, p.tokens, p.in);
  BackwardArgs args{.x = x.ref(), .weight = weight.ref(), .dout = dout.ref(), .dx = dx.ref()};
  EXPECT_EQ(backward_flops(args), 2.0 * 9 * 8 * 7);
  testing::run_variant(exec, backward_variants<Host>(), args, {"fused", {}});
  EXPECT_EQ(dx.values(), run(exec, p, "fused").dx);
}

TEST(LinearTest, NoTokensGiveZeroGradientsOfTheWeights) {
  const Problem p = make_problem(0, 8, 7, Dtype::bf16);
  testing::for_each_exec([&]<class Exec>(const Exec& exec) {
    for (const std::string& variant : variants_for(exec, p)) {
      const Result result = run(exec, p, variant);
      EXPECT_EQ(result.dweight, std::vector<float>(56, 0.0F)) << variant;
      EXPECT_EQ(result.dbias, std::vector<float>(7, 0.0F)) << variant;
    }
  });
}

TEST(LinearTest, ArgumentsThatDoNotFitAreRefused) {
  const auto message = [](const ForwardArgs& args) -> std::string {
    return test::message_of([&] { check(args); });
  };
  ForwardArgs args;
  args.x = {nullptr, Dtype::f32, {4, 8}};
  args.weight = {nullptr, Dtype::f32, {3, 8}};
  args.out = {nullptr, Dtype::f32, {4, 3}};
  EXPECT_EQ(message(args), "");
  args.bias = {nullptr, Dtype::f32, {4}};
  EXPECT_EQ(message(args), "linear: bias: holds shape (4), expected (3)");
  args.bias = {};
  args.weight = {nullptr, Dtype::f32, {3, 7}};
  EXPECT_EQ(message(args), "linear: weight: holds shape (3, 7), expected (3, 8)");
  args.weight = {nullptr, Dtype::f16, {3, 8}};
  EXPECT_EQ(message(args), "linear: weight: holds f16, expected f32");
  args.x.dtype = args.weight.dtype = args.out.dtype = Dtype::f16;
  EXPECT_THROW((void)forward(serial_host(), args, {"fused", {}}, Workspace{}), InputError);
}

// The rows of the identity pick the columns of the weight.
RC_GTEST_PROP(LinearProperty, IdentityGivesTheTransposedWeight, ()) {
  const auto in = *rc::gen::inRange<std::int64_t>(1, 70);
  const auto out = *rc::gen::inRange<std::int64_t>(1, 70);
  const auto dtype = *rc::gen::elementOf(std::vector<Dtype>(all_dtypes.begin(), all_dtypes.end()));
  Problem p = make_problem(in, in, out, dtype);
  for (std::int64_t i = 0; i < in * in; ++i) {
    p.x[static_cast<std::size_t>(i)] = i % (in + 1) == 0 ? 1.0F : 0.0F;
  }
  p.bias.clear();
  for (const std::string& variant : variants_for(serial_host(), p)) {
    const Result result = run(Kokkos::OpenMP(2), p, variant);
    for (std::int64_t i = 0; i < in; ++i) {
      for (std::int64_t o = 0; o < out; ++o) {
        RC_ASSERT(result.out[static_cast<std::size_t>(i * out + o)] ==
                  p.weight[static_cast<std::size_t>(o * in + i)]);
      }
    }
  }
}

}  // namespace
}  // namespace katt::linear
