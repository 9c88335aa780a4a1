#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/execution.hpp"
#include "memory/tracker.hpp"
#include "nn/device_memory.hpp"
#include "nn/inference/generate.hpp"
#include "nn/inference/most_likely.hpp"
#include "nn/model/model.hpp"
#include "op/buffer.hpp"
#include "tests/device.hpp"
#include "tests/message_of.hpp"
#include "tests/nn/cuda_calls.hpp"
#include "tests/nn/llama_tiny.hpp"
#include "tile/bf16/bf16_units.hpp"

namespace katt {
namespace {

using Prompts = std::vector<std::vector<std::int64_t>>;
using test::random_model;

template <class Exec>
class Generate : public ::testing::Test {};

#if defined(KATT_HAS_CUDA)
using Spaces = ::testing::Types<Kokkos::Cuda, Host>;
#else
using Spaces = ::testing::Types<Host>;
#endif
TYPED_TEST_SUITE(Generate, Spaces);

Prompts prompts_of(const std::vector<std::int64_t>& lengths) {
  Prompts prompts;
  for (const std::int64_t length : lengths) {
    auto& prompt = prompts.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) prompt.push_back((i * i * 7 + 3 * i + length) % 97);
  }
  return prompts;
}

template <class Exec>
Prompts alone(const nn::Llama<Exec>& model, const Prompts& prompts,
              const nn::GenerateOptions& how) {
  Prompts tokens;
  for (const auto& prompt : prompts) {
    nn::Session<Exec> session(model, {.capacity = std::ssize(prompt) + how.max_new_tokens});
    tokens.push_back(nn::generate(session, model.config(), prompt, how).tokens);
  }
  return tokens;
}

template <class Exec>
Prompts together(const nn::Llama<Exec>& model, const Prompts& prompts,
                 const nn::GenerateOptions& how, nn::SessionOptions options) {
  nn::Session<Exec> session(model, std::move(options));
  return nn::generate(session, model.config(), prompts, how).tokens;
}

TYPED_TEST(Generate, ContinuesEachPromptAsAlone) {
  const Prompts prompts = prompts_of({5, 1, 130, 23, 64});  // pages of 64
  for (const Dtype dtype : all_dtypes) {
    // When a product of few rows uses another unit than a product of one row, results in 16 bits
    // may differ.
    const bool has_same_bits =
        is_host_v<TypeParam> && tile::bf16_panels::unit() != tile::bf16_panels::UnitName::amx;
    if (dtype != Dtype::f32 && !has_same_bits) continue;
    const auto model = random_model<TypeParam>(dtype);
    for (const double temperature : {0.0, 1.0}) {
      const nn::GenerateOptions how{.max_new_tokens = 9,
                                    .sampling = {.temperature = temperature, .seed = 5}};
      const Prompts expected = alone(model, prompts, how);
      for (const std::int64_t batch : {1, 2, 5}) {
        const auto options = nn::session_for(prompts, how.max_new_tokens, batch);
        for (const bool adapts : {false, true}) {
          nn::GenerateOptions adapted = how;
          adapted.adapts_threads = adapts;
          EXPECT_EQ(together(model, prompts, adapted, options), expected)
              << name_of(dtype) << " batch " << batch << " temperature " << temperature;
        }
      }
    }
  }
}

/// Few tokens store what many do not (nn::parts_of_forward()): a session has room for either.
TYPED_TEST(Generate, FewAndManyTokensFitTheirSession) {
  for (const Dtype dtype : all_dtypes) {
    const auto model = random_model<TypeParam>(dtype);
    for (const std::int64_t length : {1, 63, 64, 65, 90, 130}) {
      const std::vector<std::int64_t> prompt = prompts_of({length}).front();
      nn::Session<TypeParam> fitting(model, {.capacity = length});
      nn::Session<TypeParam> roomy(model, {.capacity = 4 * length + 300});
      const std::vector<float> logits = fitting.append(prompt, true);
      EXPECT_EQ(logits, roomy.append(prompt, true)) << name_of(dtype) << " " << length;
      // The most that are few, and the others after them.
      const std::size_t few = nn::few_tokens;
      if (prompt.size() <= few) continue;
      fitting.clear();
      (void)fitting.append(std::span(prompt).first(few));
      const std::vector<float> later = fitting.append(std::span(prompt).subspan(few));
      const auto last = std::span(logits).last(later.size());
      const float limit = dtype == Dtype::f32 ? 1e-4F : 0.1F;
      for (std::size_t i = 0; i < later.size(); ++i)
        ASSERT_NEAR(later[i], last[i], limit) << length;
    }
  }
}

/// The same for many sequences that end one after the other.
TYPED_TEST(Generate, ManySequencesBecomeFew) {
  const auto model = random_model<TypeParam>(Dtype::f32);
  std::vector<std::int64_t> lengths(70, 3);
  const Prompts prompts = prompts_of(lengths);
  nn::Session<TypeParam> session(model, {.batch = 70, .capacity = 8, .chunk = 4, .page_size = 4});
  std::vector<std::int64_t> sequences;
  for (const auto& prompt : prompts) {
    sequences.push_back(session.open());
    const std::int64_t last = sequences.back();
    (void)session.append_to(std::span(&last, 1), prompt);
  }
  const std::vector<std::int64_t> next(70, 5);
  EXPECT_EQ(session.append_to(sequences, next).size(), 70U * 97U);
  EXPECT_EQ(session.append_to(std::span(sequences).first(60), std::span(next).first(60)).size(),
            60U * 97U);
  // Without pages all of them grow together.
  nn::Session<TypeParam> whole(model, {.batch = 70, .capacity = 4});
  EXPECT_EQ(whole.append(std::vector<std::int64_t>(140, 5)).size(), 70U * 97U);
}

TYPED_TEST(Generate, TakesLongPromptsInPieces) {
  const auto model = random_model<TypeParam>(Dtype::f32);
  const Prompts prompts = prompts_of({70, 9, 33});
  const nn::GenerateOptions how{.max_new_tokens = 4};
  nn::SessionOptions options = nn::session_for(prompts, how.max_new_tokens, 3);
  options.chunk = 16;
  EXPECT_EQ(together(model, prompts, how, options), alone(model, prompts, how));
}

TYPED_TEST(Generate, EndsEachSequenceAtItsEnd) {
  auto model = random_model<TypeParam>(Dtype::f32);
  const Prompts prompts = prompts_of({5, 12, 7});
  nn::GenerateOptions how{.max_new_tokens = 12};
  const Prompts endless = alone(model, prompts, how);
  nn::LlamaConfig config = model.config();
  // The second sequence ends early, at another token than the first; others perhaps.
  config.eos_token_ids = {endless[0][9], endless[1][2]};
  how.stop_at_eos = true;
  nn::Session<TypeParam> session(model, nn::session_for(prompts, how.max_new_tokens, 2));
  const auto made = nn::generate(session, config, prompts, how);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto end =
        std::ranges::find_if(endless[i], [&](auto token) { return config.is_end(token); });
    const Prompts::value_type expected(endless[i].begin(),
                                       end == endless[i].end() ? end : std::next(end));
    EXPECT_EQ(made.tokens[i], expected) << i;
  }
  EXPECT_LE(made.tokens[1].size(), 3U);
}

/// Fills a row of a matrix of the model.
template <class Exec>
void fill_row(const nn::Llama<Exec>& model, const TensorRef<2>& matrix, std::int64_t row,
              float value) {
  const std::vector<float> values(static_cast<std::size_t>(matrix.extent[1]), value);
  memory::Transfer<Exec> transfer(model.exec());
  nn::write_elements(transfer, values, matrix.dtype,
                     static_cast<std::byte*>(matrix.data) +
                         static_cast<std::size_t>(row * matrix.stride[0]) * size_of(matrix.dtype));
  transfer.wait();
}

template <class F>
void expect_not_finite(const F& f, std::size_t sequence, const std::string& message) {
  try {
    f();
    ADD_FAILURE() << "expected: " << message;
  } catch (const nn::NotFiniteError& error) {
    EXPECT_EQ(error.sequence, sequence) << message;
    EXPECT_TRUE(test::contains(error.what(), "logits are not finite at position " + message));
  }
}

TYPED_TEST(Generate, EndsWhereLogitsAreNotFinite) {
  const auto model = random_model<TypeParam>(Dtype::f32);
  constexpr std::int64_t bad = 13;
  fill_row(model, model.weights().embedding, bad, std::numeric_limits<float>::quiet_NaN());
  const std::vector<std::int64_t> two{1, 2, 3, 4, 5, 6}, next{7, bad}, one{1, bad, 4, 5};

  nn::Session<TypeParam> plain(model, {.batch = 2, .capacity = 8});
  EXPECT_NO_THROW((void)plain.append(two));
  expect_not_finite([&] { (void)plain.append(next); }, 1, "3: a weight");
  plain.clear();
  EXPECT_NO_THROW((void)plain.append(two));
  expect_not_finite([&] { (void)plain.append_greedily({}, next); }, 1, "3");
  nn::Session<TypeParam> pieces(model, {.batch = 1, .capacity = 8, .chunk = 1});
  expect_not_finite([&] { (void)pieces.append(one, true); }, 0, "1");

  nn::Session<TypeParam> paged(model, {.batch = 2, .capacity = 8, .page_size = 4, .pages = 4});
  const std::vector<std::int64_t> both{paged.open(), paged.open()};
  EXPECT_NO_THROW((void)paged.append_to(both, two));
  expect_not_finite([&] { (void)paged.append_greedily(both, next); }, 1, "3");
  expect_not_finite([&] { (void)paged.append_to(both, next); }, 1, "4");

  for (const double temperature : {0.0, 1.0}) {
    const nn::GenerateOptions how{.max_new_tokens = 4, .sampling = {.temperature = temperature}};
    const Prompts prompts{{1, 2}, {3, 4, 5}, {6, bad, 8}};
    expect_not_finite(
        [&] {
          (void)together(model, prompts, how, nn::session_for(prompts, how.max_new_tokens, 2));
        },
        2, "2");
    expect_not_finite([&] { (void)alone(model, {prompts[2]}, how); }, 0, "2");
  }

  const auto narrow = random_model<TypeParam>(Dtype::f16);
  nn::Session<TypeParam> overflows(narrow, {.batch = 1, .capacity = 8});
  EXPECT_NO_THROW((void)overflows.append(std::vector<std::int64_t>{1}));
  fill_row(narrow, narrow.weights().head, 5, 6e4F);
  expect_not_finite(
      [&] {
        (void)overflows.append(std::vector<std::int64_t>{1, 2});
      },
      0, "2: a weight of the model is not, or f16 overflows");
}

TYPED_TEST(Generate, KeepsAWindowAndSinks) {
  const auto model = random_model<TypeParam>(Dtype::f32);
  const Prompts prompts = prompts_of({20, 3, 11});
  const nn::GenerateOptions how{.max_new_tokens = 30};
  const Prompts expected = alone(model, prompts, how);
  const auto all = nn::session_for(prompts, how.max_new_tokens, 3, 60, 4);
  EXPECT_EQ(together(model, prompts, how, all), expected) << "nothing is evicted";
  EXPECT_EQ(all.window, 0) << "a window that is never full costs nothing";
  const auto few = nn::session_for(prompts, how.max_new_tokens, 3, 8, 2);
  const Prompts batch = together(model, prompts, how, few);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Prompts one{prompts[i]};
    const auto options = nn::session_for(one, how.max_new_tokens, 1, 8, 2);
    EXPECT_EQ(together(model, one, how, options).front(), batch[i]) << i;
  }
  EXPECT_NE(batch, expected) << "much is evicted";
}

/// Tokens behind others attend to them, also where no piece was to come.
TYPED_TEST(Generate, ASequenceGrowsBySeveralTokens) {
  const auto model = random_model<TypeParam>(Dtype::f32);
  const std::vector<std::int64_t> tokens{5, 9, 2, 44, 7, 31, 8, 60};
  for (const std::int64_t chunk : {4, 16}) {
    const auto logits_of = [&](std::size_t first) {
      nn::Session<TypeParam> session(model,
                                     {.batch = 1, .capacity = 16, .chunk = chunk, .page_size = 4});
      const std::vector<std::int64_t> one{session.open()};
      std::vector<float> logits = session.append_to(one, std::span(tokens).first(first));
      if (first < tokens.size()) logits = session.append_to(one, std::span(tokens).subspan(first));
      return logits;
    };
    const std::vector<float> whole = logits_of(tokens.size()), parts = logits_of(5);
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-4) << chunk;
  }
}

TYPED_TEST(Generate, RefusesWhatDoesNotFit) {
  const auto model = random_model<TypeParam>(Dtype::f32);
  nn::Session<TypeParam> session(model, {.batch = 2, .capacity = 8, .chunk = 4, .page_size = 4});
  const std::int64_t first = session.open();
  const std::vector<std::int64_t> both{first, session.open()};
  EXPECT_THROW((void)session.open(), InputError);
  const auto refuses = [&](const std::vector<std::int64_t>& tokens) {
    return test::message_of<InputError>([&] { (void)session.append_to(both, tokens); });
  };
  EXPECT_TRUE(test::contains(refuses({1, 97}), "token 97: expected 0 to 96"));
  EXPECT_TRUE(test::contains(refuses({1, 2, 3}), "tokens: 3 for 2 sequences"));
  EXPECT_TRUE(test::contains(refuses(std::vector<std::int64_t>(18, 1)), "expected 1 to 8"));
  EXPECT_EQ(session.append_to(both, std::vector<std::int64_t>(16, 1)).size(), 2U * 97);
  EXPECT_TRUE(test::contains(refuses({1, 1}), "1 after 8 positions"));
  session.close(first);
  EXPECT_EQ(session.open(), first);
  nn::Session<TypeParam> windowed(
      model, {.batch = 1, .capacity = 20, .chunk = 4, .page_size = 4, .window = 4});
  const std::vector<std::int64_t> one{windowed.open()};
  EXPECT_TRUE(test::contains(test::message_of<InputError>([&] {
                               (void)windowed.append_to(one, std::vector<std::int64_t>(5, 1));
                             }),
                             "with a window, expected the first ones, at most 4"));
}

TYPED_TEST(Generate, ForecastsTheMemoryOfPages) {
  memory::install();
  const Prompts prompts = prompts_of({200, 40, 60, 10});
  for (const std::int64_t chunk : {512, 32}) {
    nn::SessionOptions options = nn::session_for(prompts, 8, 3);
    options.chunk = chunk;
    const nn::LlamaConfig config = test::small_config();
    const auto forecast = nn::inference_memory(TypeParam(), config, Dtype::f32, options);
    const memory::Scope scope;
    const auto model = random_model<TypeParam>(Dtype::f32);
    (void)together(model, prompts, {.max_new_tokens = 8}, options);
    const auto measured = static_cast<double>(scope.peak_bytes());
    EXPECT_NEAR(static_cast<double>(forecast.total()) + test::staging_bytes<TypeParam>(), measured,
                0.1 * measured)
        << "chunk " << chunk;
  }
}

TYPED_TEST(Generate, FindsTheMostLikelyTokenOfItsLogits) {
  const auto model = random_model<TypeParam>(Dtype::bf16);
  const Prompts prompts = prompts_of({7, 66});
  const nn::SessionOptions options = nn::session_for(prompts, 8, 2);
  nn::Session<TypeParam> greedy(model, options), reading(model, options);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (auto* session : {&greedy, &reading}) {
      (void)session->append_to(std::vector{session->open()}, prompts[i]);
    }
  }
  const std::vector<std::int64_t> both{0, 1};
  std::vector<std::int64_t> tokens{3, 5};
  for (int step = 0; step < 6; ++step) {
    const std::vector<float> logits = reading.append_to(both, tokens);
    tokens = greedy.append_greedily(both, tokens);
    for (std::size_t row = 0; row < both.size(); ++row) {
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(97 * row);
      EXPECT_EQ(tokens[row], std::max_element(first, first + 97) - first) << step;
    }
  }
  EXPECT_THROW((void)greedy.append_greedily(both, std::vector<std::int64_t>{97, 1}), InputError);
  EXPECT_THROW((void)greedy.append_greedily(both, std::vector<std::int64_t>{1}), InputError);
}

#if defined(KATT_HAS_CUDA)

/// The CUDA calls of a decoded token, and their number: a token of each of `batch` sequences.
class DecodedToken : public ::testing::TestWithParam<int> {
 protected:
  using Exec = Kokkos::Cuda;

  void TearDown() override { test::let_streams_be_captured(true); }

  /// The tokens of `steps` steps behind a prompt, and the calls of the last one.
  static Prompts decode(const nn::Llama<Exec>& model, nn::SessionOptions options, int steps,
                        bool greedy, test::CudaCalls& calls) {
    nn::Session<Exec> session(model, std::move(options));
    const bool paged = session.batch() > 1;
    std::vector<std::int64_t> sequences, last;
    for (int b = 0; b < session.batch(); ++b) {
      if (paged) {
        sequences.push_back(session.open());
        (void)session.append_to({&sequences.back(), 1}, std::vector<std::int64_t>(5 + b, 7));
      } else {
        (void)session.append(std::vector<std::int64_t>(5, 7));
      }
      last.push_back(3 + b);
    }
    Prompts tokens;
    for (int step = 0; step < steps; ++step) {
      (void)test::count_cuda_calls();
      if (greedy) {
        last = session.append_greedily(sequences, last);
      } else {
        const auto logits = paged ? session.append_to(sequences, last) : session.append(last);
        for (std::size_t row = 0; row < last.size(); ++row) {
          const auto first = logits.begin() + static_cast<std::ptrdiff_t>(97 * row);
          last[row] = std::max_element(first, first + 97) - first;
        }
      }
      calls = test::count_cuda_calls();
      tokens.push_back(last);
    }
    return tokens;
  }
};

TEST_P(DecodedToken, IsOneGraphAndTwoSmallCopies) {
  const auto model = random_model<Exec>(Dtype::bf16);
  const int batch = GetParam();
  const nn::SessionOptions options{
      .batch = batch, .capacity = 20, .chunk = 512, .page_size = batch > 1 ? 16 : 0};
  const int layers = 4;
  for (const bool greedy : {true, false}) {
    // norm, q·k·v, rope and append, attention, output, norm, gate and up, swiglu, down; and lengths, embedding,
    // norm, head, the largest logit
    const int launches = 9 * layers + (greedy ? 5 : 4);
    test::CudaCalls one, all;
    test::let_streams_be_captured(false);
    const Prompts expected = decode(model, options, 7, greedy, one);
    EXPECT_EQ(one.kernels + one.products, launches);
    EXPECT_EQ(one.graphs, 0);
    test::let_streams_be_captured(true);
    EXPECT_EQ(decode(model, options, 7, greedy, all), expected);
    EXPECT_EQ(all.graphs, 1);
    EXPECT_EQ(all.kernels + all.products, 0);
    if (test::device_is_emulated()) EXPECT_EQ(all.in_graphs, launches);
    for (const test::CudaCalls& calls : {one, all}) {
      EXPECT_EQ(calls.copies_to_device, 1);
      EXPECT_EQ(calls.copies_to_host, 1);
      EXPECT_EQ(calls.other_copies, 0);
      EXPECT_EQ(calls.copies_to_symbols, 0);
      EXPECT_EQ(calls.waits, 1);
      EXPECT_EQ(calls.allocations, 0);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Batches, DecodedToken, ::testing::Values(1, 3));

TEST(SubmissionOfTokens, SaysHowAndWhy) {
  const auto model = random_model<Kokkos::Cuda>(Dtype::f32);
  const auto submission_after_3 = [&] {
    nn::Session<Kokkos::Cuda> session(model, {.capacity = 8});
    for (int step = 0; step < 3; ++step) (void)session.append(std::vector<std::int64_t>{1});
    return session.submission();
  };
  EXPECT_EQ(submission_after_3(), "graph");
  test::let_streams_be_captured(false);
  EXPECT_EQ(submission_after_3(), "launches: cudaStreamBeginCapture: operation not supported");
  test::let_streams_be_captured(true);
  nn::SessionOptions chosen{.capacity = 8};
  chosen.kernels.rope = "naive";
  EXPECT_TRUE(test::contains(nn::Session<Kokkos::Cuda>(model, chosen).submission(), "variants"));
}

TEST(MostLikely, IsTheFirstOfTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const Kokkos::Cuda exec;
  for (const std::int64_t vocab : {5, 8, 600, 5003}) {
    const auto end = static_cast<std::size_t>(vocab - 1);
    std::vector<std::vector<float>> rows(8, std::vector<float>(end + 1, -2.0F));
    rows[0][2] = rows[0][4] = 1.0F;
    rows[1][end] = 0.5F;
    rows[2][1] = -0.0F, rows[2][3] = 0.0F;
    rows[3][0] = nan, rows[3][2] = 5.0F;
    rows[4][1] = nan, rows[4][end] = -1.0F;
    std::ranges::fill(rows[5], -infinity);
    rows[6][3] = infinity, rows[6][end] = infinity;
    for (const Dtype dtype : all_dtypes) {
      const bench::Tensor<2> logits("logits", Backend::cuda, dtype, {8, vocab});
      std::vector<float> all;
      for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
      logits.upload(all);
      const bench::Buffer found("found", Backend::cuda, 8 * sizeof(std::int64_t));
      nn::most_likely(exec, logits.ref(), reinterpret_cast<std::int64_t*>(found.data()));
      exec.fence();
      std::vector<std::int64_t> tokens(8);
      found.download(std::as_writable_bytes(std::span(tokens)));
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const bool is_finite =
            std::ranges::all_of(rows[r], [](float logit) { return std::isfinite(logit); });
        EXPECT_EQ(tokens[r], is_finite ? std::ranges::max_element(rows[r]) - rows[r].begin() : -1)
            << name_of(dtype) << " vocab " << vocab << " row " << r;
      }
    }
  }
}

#endif

}  // namespace
}  // namespace katt
