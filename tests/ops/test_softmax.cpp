#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/softmax/bench/description.hpp"
#include "tests/ops/suite.hpp"
#include "tile/rows/stream.hpp"

namespace katt::softmax {
namespace {

using Fwd = testing::Forward<Description>;
using Bwd = testing::Backward<Description>;
using testing::Problem;

/// Four roundings of f32 at 1, of which the rows are parts.
constexpr double slack = 4 * 0x1p-23;

struct Cases : testing::SuiteDefaults {
  using Op = Description;
  static constexpr double slack = katt::softmax::slack;
  static constexpr double gradient_tolerance = 1e-6;
  static std::vector<testing::Extents> shapes() {
    // A row of 33001 is more than a thread keeps.
    return testing::extents_of({"tokens", "vocab"}, {{1, 6},
                                                     {1, 1},
                                                     {1, 2},
                                                     {3, 16},
                                                     {64, 1024},
                                                     {23, 501},
                                                     {5, 1025},
                                                     {2, 4099},
                                                     {1, 33001},
                                                     {101, 777}});
  }
  static std::vector<std::vector<testing::Taken>> in_place() {
    return {{{"out", "x"}}, {{"dx", "x"}}, {{"dx", "dout"}}};
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Softmax, OperatorSuite, Cases);

template <class Pass>
Problem make_problem(std::int64_t tokens, std::int64_t vocab, Dtype dtype, std::uint64_t seed = 1) {
  return testing::make_problem<Description, Pass>({{"tokens", tokens}, {"vocab", vocab}}, dtype,
                                                  seed);
}

template <class Pass>
void expect_large_values(Dtype dtype) {
  auto p = make_problem<Pass>(6, 300, dtype, 5);
  std::vector<float>& x = p.values["x"];
  for (float& value : x) value = round_to(dtype, value * 1000.0F);  // about ±10⁴
  for (std::size_t t = 0; t < 6; ++t) {  // two equal largest values in every other row
    x[t * 300 + 7] = round_to(dtype, 1.2e4F);
    if (t % 2 == 0) x[t * 300 + 8] = x[t * 300 + 7];
  }
  for (const char* variant : {"naive", "fused"}) {
    const auto made =
        testing::outputs_of<Description, Pass>(Kokkos::DefaultExecutionSpace(), p, variant);
    testing::expect_outputs<Description, Pass>(p, *made, variant, slack);
  }
}

TEST(Softmax, HoldsForLargeValues) {
  for (const Dtype dtype : all_dtypes) {
    expect_large_values<Fwd>(dtype);
    expect_large_values<Bwd>(dtype);
  }
}

TEST(Softmax, MinusInfinityHasNoProbabilityAndNanSpreads) {
  for (const Dtype dtype : all_dtypes) {
    auto p = make_problem<Fwd>(2, 40, dtype);
    p.values["x"][3] = -std::numeric_limits<float>::infinity();
    p.values["x"][40 + 5] = std::numeric_limits<float>::quiet_NaN();
    for (const char* variant : {"naive", "fused"}) {
      const auto out = testing::out_of<Description>(p, variant);
      EXPECT_EQ(out[3], 0.0F) << variant;
      EXPECT_TRUE(std::isfinite(out[4])) << variant;
      EXPECT_TRUE(std::isnan(out[40])) << variant;
    }
  }
}

/// Rows past the caches have the values of the same rows in a small tensor.
template <class Pass>
void expect_streamed_values(Dtype dtype, std::int64_t vocab) {
  const Problem small = make_problem<Pass>(2, vocab, dtype);
  const std::int64_t row_bytes = vocab * static_cast<std::int64_t>(size_of(dtype));
  Problem large = make_problem<Pass>(tile::stream_variant_bytes / row_bytes + 1, vocab, dtype);
  for (const auto& [name, values] : small.values) {
    std::copy(values.begin(), values.end(), large.values[name].begin());
  }
  const std::vector<float> all = testing::out_of<Description>(large, "fused");
  const std::vector<float> some = testing::out_of<Description>(small, "fused");
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  EXPECT_FALSE(std::isnan(all.back()));
}

TEST(Softmax, LargeTensorsTakeTheSameValuesPastTheCaches) {
  for (const Dtype dtype : all_dtypes) {
    for (const std::int64_t vocab : {4128, 33792}) {  // exponentials kept, and computed twice
      expect_streamed_values<Fwd>(dtype, vocab);
      expect_streamed_values<Bwd>(dtype, vocab);
    }
  }
}

TEST(Softmax, TheSumOfLargeGradientsDoesNotOverflow) {
  auto p = make_problem<Bwd>(2, 4099, Dtype::f32);
  for (float& dout : p.values["dout"]) dout = 1e38F;
  for (const char* variant : {"naive", "fused"}) {
    for (const float dx : testing::out_of<Description>(p, variant)) {
      ASSERT_LE(std::abs(dx), 1e33F) << variant;
    }
  }
}

TEST(SoftmaxRefusal, NamesTheReason) {
  const ForwardArgs args{{nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f16, {4, 8}}};
  EXPECT_THROW(check(args), InputError);
  const BackwardArgs back{
      {nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f32, {4, 8}}, {nullptr, Dtype::f32, {4, 7}}};
  EXPECT_THROW(check(back), InputError);
}

RC_GTEST_PROP(SoftmaxProperty, RowsSumToOneAndGradientsToZero, ()) {
  const auto tokens = *rc::gen::inRange<std::int64_t>(1, 20);
  const auto vocab = *rc::gen::inRange<std::int64_t>(1, 3000);
  const auto seed = *rc::gen::arbitrary<std::uint16_t>();
  const auto out = testing::out_of<Description>(make_problem<Fwd>(tokens, vocab, Dtype::f32, seed));
  const auto dx = testing::out_of<Description>(make_problem<Bwd>(tokens, vocab, Dtype::f32, seed));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto sum = [&](const std::vector<float>& values) {
      return std::accumulate(values.begin() + t * vocab, values.begin() + (t + 1) * vocab, 0.0);
    };
    RC_ASSERT(std::abs(sum(out) - 1) < 1e-5);
    RC_ASSERT(std::abs(sum(dx)) < 1e-5);
  }
}

RC_GTEST_PROP(SoftmaxProperty, AConstantAddedToARowChangesNothing, ()) {
  auto p = make_problem<Fwd>(*rc::gen::inRange<std::int64_t>(1, 5),
                             *rc::gen::inRange<std::int64_t>(1, 2000), Dtype::f32,
                             *rc::gen::arbitrary<std::uint16_t>());
  std::vector<float>& values = p.values["x"];
  for (float& x : values) x = std::round(x * 64.0F) / 64.0F;  // so that the sums below are exact
  const auto before = testing::out_of<Description>(p);
  const auto shift = static_cast<float>(*rc::gen::inRange(-4096, 4096));
  for (float& x : values) x += shift;
  RC_ASSERT(testing::out_of<Description>(p) == before);
}

}  // namespace
}  // namespace katt::softmax
