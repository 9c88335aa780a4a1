#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "nn/device_memory.hpp"
#include "nn/inference/kv_cache.hpp"
#include "ops/attention/attention.hpp"
#include "ops/rope/rope.hpp"
#include "tests/message_of.hpp"
#include "tests/ops/attention_problems.hpp"

namespace katt::nn {
namespace {

using Exec = Kokkos::DefaultExecutionSpace;
using attention::ProblemData;
using Ids = std::vector<std::int64_t>;

const Backend backend = backend_of<Exec>();

void expect_error(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_TRUE(test::contains(message, part));
  }
}

/// Tokens [begin, begin + count) of a (batch, heads, seq, head_dim) tensor.
bench::Tensor<4> tokens_of(const std::vector<float>& all, const std::array<std::int64_t, 4>& extent,
                           std::int64_t begin, std::int64_t count, Dtype dtype,
                           bench::HeadLayout layout) {
  std::vector<float> chosen;
  for (std::int64_t head = 0; head < extent[0] * extent[1]; ++head) {
    const auto first = all.begin() + (head * extent[2] + begin) * extent[3];
    chosen.insert(chosen.end(), first, first + count * extent[3]);
  }
  bench::Tensor<4> tensor("tokens", backend, dtype, {extent[0], extent[1], count, extent[3]},
                          layout);
  tensor.upload(chosen);
  return tensor;
}

/// Attention of the last `queries` tokens against a cache that holds them.
std::vector<float> attend(const KvCache<Exec>& cache, std::int64_t layer, const bench::Tensor<4>& q,
                          bool causal) {
  const Exec exec;
  const bench::Tensor<4> out("out", backend, q.ref().dtype, q.ref().extent);
  attention::PagedArgs args;
  args.q = q.ref();
  args.out = out.ref();
  args.scale = 1.0F / std::sqrt(static_cast<float>(q.ref().extent[3]));
  args.mask.causal = causal;
  cache.read(layer, args);
  attention::run_pass(exec, args, {"decode", {64, 128}});
  return out.download();
}

RC_GTEST_PROP(KvCacheProperty, StepByStepEqualsOnePassOfFlash, ()) {
  const auto kv_heads = *rc::gen::inRange<std::int64_t>(1, 3);
  const attention::Shape shape{*rc::gen::inRange<std::int64_t>(1, 4),
                               kv_heads * *rc::gen::inRange<std::int64_t>(1, 4),
                               kv_heads,
                               *rc::gen::inRange<std::int64_t>(1, 40),
                               0,
                               8 * *rc::gen::inRange<std::int64_t>(1, 12)};
  attention::Shape square = shape;
  square.seq_kv = shape.seq_q;
  auto data = attention::make_problem(square, Dtype::f32, *rc::gen::arbitrary<std::uint16_t>());
  data->shape.causal = true;
  const auto& p = data->shape;

  const Exec exec;
  const std::vector<float> expected = attention::run_forward(exec, *data, {"flash", {}}).out;
  KvCache<Exec> cache({.layers = 2,
                       .slots = p.batch + 2,
                       .kv_heads = p.kv_heads,
                       .head_dim = p.head_dim,
                       .capacity = p.seq_q + *rc::gen::inRange<std::int64_t>(0, 5),
                       .page_size = *rc::gen::inRange<std::int64_t>(0, 9)});
  (void)cache.acquire();  // slots and batch entries differ
  Ids slots;
  for (std::int64_t b = 0; b < p.batch; ++b) slots.push_back(cache.acquire());
  std::reverse(slots.begin(), slots.end());
  const auto layout = *rc::gen::element(bench::HeadLayout::bhsd, bench::HeadLayout::bshd);

  for (std::int64_t done = 0; done < p.seq_q;) {
    const auto count = std::min(*rc::gen::inRange<std::int64_t>(1, 4), p.seq_q - done);
    if (count == 1 && *rc::gen::arbitrary<bool>()) {
      cache.extend_by_one(exec, slots);
      cache.advance(exec);
    } else {
      cache.extend(exec, slots, Ids(slots.size(), count));
    }
    const std::array<std::int64_t, 4> kv{p.batch, p.kv_heads, p.seq_q, p.head_dim};
    const auto k = tokens_of(data->k, kv, done, count, Dtype::f32, layout);
    const auto v = tokens_of(data->v, kv, done, count, Dtype::f32, layout);
    cache.append(exec, 1, k.ref(), v.ref());
    const std::array<std::int64_t, 4> queries{p.batch, p.heads, p.seq_q, p.head_dim};
    const auto q = tokens_of(data->q, queries, done, count, Dtype::f32, layout);
    const std::vector<float> out = attend(cache, 1, q, true);
    for (std::int64_t row = 0; row < p.batch * p.heads * count; ++row) {
      const std::int64_t at = (row / count * p.seq_q + done + row % count) * p.head_dim;
      for (std::int64_t d = 0; d < p.head_dim; ++d) {
        RC_ASSERT(std::abs(out[static_cast<std::size_t>(row * p.head_dim + d)] -
                           expected[static_cast<std::size_t>(at + d)]) < 2e-5F);
      }
    }
    done += count;
  }
}

/// A cache of one head whose key of token p is p + 1 in every element.
struct Counting {
  KvCache<Exec> cache;
  std::int64_t slot;

  explicit Counting(const KvCacheConfig& config) : cache(config), slot(cache.acquire()) {}

  void add(std::int64_t count) {
    const std::int64_t begin = cache.length(slot);
    const auto d = cache.config().head_dim;
    std::vector<float> values;
    for (std::int64_t t = 0; t < count; ++t) {
      values.insert(values.end(), static_cast<std::size_t>(d), static_cast<float>(begin + t + 1));
    }
    bench::Tensor<4> tokens("tokens", backend, cache.config().dtype, {1, 1, count, d});
    tokens.upload(values);
    if (count == 1) {
      cache.extend_by_one(Exec(), Ids{slot});
      cache.advance(Exec());
    } else {
      cache.extend(Exec(), Ids{slot}, Ids{count});
    }
    cache.append(Exec(), 0, tokens.ref(), tokens.ref());
  }

  /// Tokens that attention with equal scores sees: with q = 0 the output is the mean of the values.
  float mean() const {
    const bench::Tensor<4> q("q", backend, cache.config().dtype,
                             {1, 1, 1, cache.config().head_dim});
    q.upload(std::vector<float>(static_cast<std::size_t>(cache.config().head_dim), 0.0F));
    return attend(cache, 0, q, false)[0];
  }
};

RC_GTEST_PROP(KvCacheProperty, EvictionKeepsExactlySinksAndWindow, ()) {
  const auto sinks = *rc::gen::inRange<std::int64_t>(0, 5);
  const auto window = *rc::gen::inRange<std::int64_t>(1, 12);
  Counting counting({.slots = 2,
                     .head_dim = 8,
                     .page_size = *rc::gen::inRange<std::int64_t>(0, 5),
                     .window = window,
                     .sinks = sinks});
  const auto steps =
      *rc::gen::resize(10, rc::gen::container<Ids>(rc::gen::inRange<std::int64_t>(1, 20)));
  for (const std::int64_t count : steps) {
    counting.add(count);
    const std::int64_t length = counting.cache.length(counting.slot);
    double sum = 0;
    double kept = 0;
    for (std::int64_t p = 0; p < length; ++p) {
      if (p >= sinks && p < length - window) continue;
      ++kept;
      sum += static_cast<double>(p + 1);
    }
    RC_ASSERT(std::abs(counting.mean() - sum / kept) <= 1e-5 * sum / kept);
  }
}

TEST(KvCache, KeepsAbsolutePositions) {
  Counting counting({.slots = 1, .head_dim = 8, .window = 3, .sinks = 1});
  counting.add(5);
  counting.add(2);
  EXPECT_EQ(counting.cache.length(counting.slot), 7);
  const bench::Buffer positions("positions", backend, 2 * sizeof(std::int64_t));
  const Exec exec;
  counting.cache.positions(exec, reinterpret_cast<std::int64_t*>(positions.data()), 2);
  exec.fence();
  Ids found(2);
  positions.download(std::as_writable_bytes(std::span(found)));
  EXPECT_EQ(found, (Ids{5, 6}));
}

TEST(KvCache, StoresEveryDtypeAndCountsItsBytes) {
  for (const Dtype dtype : all_dtypes) {
    Counting counting(
        {.slots = 3, .head_dim = 16, .capacity = 40, .dtype = dtype, .page_size = 16});
    counting.add(40);
    EXPECT_EQ(counting.mean(), 20.5F) << name_of(dtype);
    // 9 pages of 16 tokens, K and V; a table of 3 × 3, and begin, count and kept of 3 slots.
    EXPECT_EQ(counting.cache.bytes(), 2 * 9 * 16 * 16 * size_of(dtype) + (9 + 9) * 8);
    EXPECT_EQ(nn::kv_cache_bytes(counting.cache.config()), counting.cache.bytes());
  }
}

TEST(KvCache, TurnsAndAppendsInOneLaunchWithTheBitsOfTwo) {
  const Exec exec;
  constexpr std::int64_t batch = 2, heads = 6, kv_heads = 2, head_dim = 40, capacity = 12;
  const bench::Tensor<2> cos_sin("cos_sin", backend, Dtype::f32, {capacity, head_dim});
  rope::build_cache(exec, {}, cos_sin.ref());
  for (const Dtype dtype : all_dtypes) {
    KvCacheConfig config{.layers = 2, .slots = batch, .kv_heads = kv_heads, .head_dim = head_dim};
    config.capacity = capacity;
    config.dtype = dtype;
    config.page_size = 4;
    KvCache<Exec> two(config), one(config);
    const Ids slots{two.acquire(), two.acquire()};
    const Ids same{one.acquire(), one.acquire()};
    for (int step = 0; step < 7; ++step) {
      const auto tensor = [&](std::int64_t count, float scale) {
        bench::Tensor<4> made("tokens", backend, dtype, {batch, count, 1, head_dim},
                              bench::HeadLayout::bshd);
        std::vector<float> values(static_cast<std::size_t>(batch * count * head_dim));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = scale * std::sin(static_cast<float>(31 * step + 7) * static_cast<float>(i));
        }
        made.upload(values);
        return made;
      };
      const auto q = tensor(heads, 2), turned_q = tensor(heads, 2), k = tensor(kv_heads, 3),
                 given_k = tensor(kv_heads, 3), v = tensor(kv_heads, 1);
      two.extend(exec, slots, Ids{1, 1});
      const rope::ForwardArgs turn{.x = q.ref(),
                                   .out = q.ref(),
                                   .x2 = k.ref(),
                                   .out2 = k.ref(),
                                   .cache = cos_sin.ref(),
                                   .first_position = step};
      ASSERT_TRUE(rope::forward(exec, turn, Config{"fused", {}}, Workspace{}).is_ok());
      two.append(exec, 1, k.ref(), v.ref());
      one.extend_by_one(exec, same);
      one.advance(exec);
      one.append_turned(exec, 1, turned_q.ref(), given_k.ref(), v.ref(), cos_sin.ref());
      exec.fence();
      EXPECT_EQ(q.download(), turned_q.download()) << name_of(dtype) << " step " << step;
      EXPECT_EQ(attend(two, 1, q, true), attend(one, 1, q, true)) << name_of(dtype) << step;
    }
  }
}

TEST(KvCache, ContiguousSlotsLieInTheirOrder) {
  KvCache<Exec> cache({.slots = 3, .head_dim = 8, .capacity = 2});
  const Ids first{cache.acquire(), cache.acquire(), cache.acquire()};
  cache.extend(Exec(), first, Ids{1, 1, 1});
  for (const std::int64_t slot : {0, 2, 1}) cache.release(slot);
  const Ids slots{cache.acquire(), cache.acquire(), cache.acquire()};
  bench::Tensor<4> tokens("tokens", backend, Dtype::f32, {3, 1, 1, 8});
  std::vector<float> values(3 * 8);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i / 8);
  tokens.upload(values);
  cache.extend(Exec(), slots, Ids{1, 1, 1});
  cache.append(Exec(), 0, tokens.ref(), tokens.ref());
  std::vector<float> keys(3 * 2 * 8);
  nn::copy_to_host(Exec(), cache.keys(0).data, std::as_writable_bytes(std::span(keys)));
  for (std::size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(keys[s * 2 * 8], static_cast<float>(slots[s])) << "slot " << slots[s];
  }
}

TEST(KvCache, SequencesOfDifferentLengthsShareAStep) {
  KvCache<Exec> cache({.slots = 2, .head_dim = 8, .capacity = 9, .page_size = 4});
  const Ids slots{cache.acquire(), cache.acquire()};
  bench::Tensor<4> tokens("tokens", backend, Dtype::f32, {2, 1, 3, 8});
  std::vector<float> values(2 * 3 * 8, 100.0F);  // rows beyond the count of a sequence
  for (std::size_t i = 0; i < 8; ++i) {
    values[i] = 1.0F;
    for (std::size_t t = 0; t < 3; ++t) values[24 + t * 8 + i] = static_cast<float>(2 + t);
  }
  tokens.upload(values);
  const Exec exec;
  cache.extend(exec, slots, Ids{1, 3});
  cache.append(exec, 0, tokens.ref(), tokens.ref());
  bench::Tensor<4> q("q", backend, Dtype::f32, {2, 1, 1, 8});
  q.upload(std::vector<float>(16, 0.0F));
  const std::vector<float> out = attend(cache, 0, q, false);
  EXPECT_EQ(out[0], 1.0F);
  EXPECT_NEAR(out[8], 3.0F, 1e-6F);
  EXPECT_EQ(cache.length(slots[0]), 1);
  EXPECT_EQ(cache.length(slots[1]), 3);
}

TEST(KvCache, SlotsAndPagesComeBack) {
  KvCache<Exec> cache({.slots = 2, .head_dim = 8, .capacity = 8, .page_size = 4, .pages = 3});
  const std::int64_t first = cache.acquire();
  const std::int64_t second = cache.acquire();
  expect_error(test::message_of([&] { (void)cache.acquire(); }), {"no slot is free", "2"});

  cache.extend(Exec(), Ids{first}, Ids{8});
  EXPECT_EQ(cache.free_pages(), 1);
  // All or nothing: the second slot would fit its first page, not its second.
  expect_error(test::message_of([&] { cache.extend(Exec(), Ids{second}, Ids{5}); }),
               {"2 more pages", "1 of 3"});
  EXPECT_EQ(cache.length(second), 0);
  EXPECT_EQ(cache.free_pages(), 1);
  cache.release(first);
  EXPECT_EQ(cache.free_pages(), 3);
  cache.extend(Exec(), Ids{second}, Ids{5});
  EXPECT_EQ(cache.acquire(), first);
  EXPECT_EQ(cache.length(first), 0);
}

TEST(KvCache, RefusalsNameWhatWasAskedAndTheLimit) {
  KvCache<Exec> cache({.slots = 2, .head_dim = 8, .capacity = 10});
  const std::int64_t slot = cache.acquire();
  const Exec exec;
  cache.extend(exec, Ids{slot}, Ids{7});
  expect_error(test::message_of([&] { cache.extend(exec, Ids{slot}, Ids{4}); }), {"7", "4", "10"});
  EXPECT_EQ(cache.length(slot), 7);
  expect_error(test::message_of([&] { cache.extend(exec, Ids{1}, Ids{1}); }),
               {"slot 1", "not in use"});
  expect_error(test::message_of([&] { cache.extend(exec, Ids{5}, Ids{1}); }), {"slot 5"});
  expect_error(test::message_of([&] {
                 cache.extend(exec, Ids{slot, slot}, Ids{1, 1});
               }),
               {"twice"});
  expect_error(test::message_of([&] { cache.extend(exec, Ids{slot}, Ids{-1}); }), {"-1"});
  expect_error(test::message_of([&] { cache.release(1); }), {"slot 1", "not in use"});
  expect_error(test::message_of([&] { (void)cache.keys(1); }), {"layer 1"});
  const bench::Tensor<4> few("k", backend, Dtype::f32, {1, 1, 6, 8});
  EXPECT_THROW(cache.append(exec, 0, few.ref(), few.ref()), InputError);  // 7 tokens are due

  expect_error(test::message_of([] { KvCache<Exec>({.head_dim = 12, .capacity = 4}); }),
               {"head_dim 12"});
  expect_error(test::message_of([] { KvCache<Exec>({.capacity = 0}); }), {"capacity 0"});
  expect_error(test::message_of([] { KvCache<Exec>({.capacity = 4, .sinks = 2}); }), {"sinks 2"});
  expect_error(test::message_of([] { KvCache<Exec>({.capacity = 9, .window = 4}); }),
               {"capacity 9"});
}

}  // namespace
}  // namespace katt::nn
