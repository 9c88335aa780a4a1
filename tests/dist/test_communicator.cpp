#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "dist/communicator.hpp"
#include "memory/transfer.hpp"
#include "nn/device_memory.hpp"
#include "tests/arguments.hpp"

/// Run by CTest alone and under mpirun with 2, 3, 4 and 8 ranks. Every rank knows what the others
/// hold: the reference gathers it and computes on the host.
namespace katt {
namespace {

using Exec = Kokkos::DefaultExecutionSpace;
using dist::Communicator;
using dist::Part;

/// What rank r holds at i: exact in every dtype.
float held(std::uint64_t seed, int r, std::int64_t i) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15U +
                    static_cast<std::uint64_t>(r) * 0xD1B54A32D192ED03U +
                    static_cast<std::uint64_t>(i);
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x ^= x >> 27U;
  return static_cast<float>(static_cast<int>(x % 255U) - 127) / 16.0F;
}

std::vector<float> all_held(std::uint64_t seed, int r, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = held(seed, r, i);
  return values;
}

/// A tensor in the memory of the execution space.
class Tensor {
 public:
  Tensor(Dtype dtype, const std::vector<float>& values)
      : dtype_(dtype),
        count_(std::ssize(values)),
        memory_("test", values.size() * size_of(dtype), true) {
    memory::Transfer<Exec> transfer{Exec()};
    nn::write_elements(transfer, values, dtype, memory_.data());
  }
  Tensor(Dtype dtype, std::int64_t count)
      : Tensor(dtype, std::vector<float>(static_cast<std::size_t>(count), 99.0F)) {}

  [[nodiscard]] TensorRef<1> ref() const { return {memory_.data(), dtype_, {count_}}; }
  [[nodiscard]] TensorRef<1> part(Part part) const {
    return {memory_.data() + static_cast<std::size_t>(part.begin) * size_of(dtype_),
            dtype_,
            {part.count}};
  }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> values(static_cast<std::size_t>(count_));
    memory::Transfer<Exec> transfer{Exec()};
    nn::read_elements(transfer, memory_.data(), dtype_, values);
    return values;
  }

 private:
  Dtype dtype_;
  std::int64_t count_;
  nn::DeviceMemory<Exec> memory_;
};

/// Σ over ranks in their order, rounded once.
std::vector<float> sum_of_all(std::uint64_t seed, const Communicator& ranks, Dtype dtype,
                              std::int64_t count) {
  std::vector<float> sum(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    float total = held(seed, 0, i);
    for (int r = 1; r < ranks.size(); ++r) total += held(seed, r, i);
    sum[static_cast<std::size_t>(i)] = round_to(dtype, total);
  }
  return sum;
}

/// One random case: the same on every rank.
struct Problem {
  std::uint64_t seed;
  Dtype dtype;
  std::int64_t count;
};

/// Problems over sizes from nothing to several rounds of messages.
std::vector<Problem> problems() {
  const Communicator ranks = dist::world();
  const std::string seed = ranks.broadcast_text(std::to_string(std::random_device{}()), 0);
  std::mt19937_64 random(std::stoull(seed));
  std::vector<Problem> all;
  for (const Dtype dtype : all_dtypes) {
    for (const std::int64_t count : {0, 1, 2, 7, 64, 1000}) all.push_back({random(), dtype, count});
    for (int i = 0; i < 6; ++i) {
      const auto bits = static_cast<unsigned>(random() % 14U);
      all.push_back(
          {random(), dtype, static_cast<std::int64_t>(random() % (std::uint64_t{2} << bits))});
    }
    const auto round = static_cast<std::int64_t>((std::size_t{4} << 20) / size_of(dtype));
    all.push_back({random(), dtype, round + 77});  // more than a round of messages
  }
  return all;
}

std::string text_of(const Problem& problem) {
  return "seed " + std::to_string(problem.seed) + ", " + std::string(name_of(problem.dtype)) +
         ", " + std::to_string(problem.count) + " elements";
}

void sleep_at_random(std::uint64_t seed, int rank) {
  // Ranks come to an operation at different times.
  if ((seed + static_cast<std::uint64_t>(rank)) % 4 == 0) usleep(500);
}

TEST(Communicator, PartsCoverAll) {
  for (const std::int64_t n : {0, 1, 2, 3, 7, 8, 9, 1000}) {
    for (const int ranks : {1, 2, 3, 8}) {
      std::int64_t next = 0;
      for (int r = 0; r < ranks; ++r) {
        const Part part = dist::part_of(n, ranks, r);
        EXPECT_EQ(part.begin, next);
        EXPECT_GE(part.count, 0);
        next += part.count;
      }
      EXPECT_EQ(next, n);
    }
  }
}

TEST(Communicator, AllReduceIsTheSumInOrder) {
  const Communicator ranks = dist::world();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const Tensor values(problem.dtype, all_held(problem.seed, ranks.rank(), problem.count));
    sleep_at_random(problem.seed, ranks.rank());
    ranks.all_reduce(Exec(), values.ref()).wait();
    EXPECT_EQ(values.values(), sum_of_all(problem.seed, ranks, problem.dtype, problem.count));
  }
}

TEST(Communicator, AllReduceIsInF32) {
  // 2048 + 1 + … + 1 stays 2048 in f16 and bf16 when every sum is rounded.
  const Communicator ranks = dist::world();
  for (const Dtype dtype : all_dtypes) {
    const float first = dtype == Dtype::bf16 ? 256.0F : 2048.0F;
    const Tensor values(dtype, std::vector{ranks.rank() == 0 ? first : 1.0F});
    ranks.all_reduce(Exec(), values.ref()).wait();
    EXPECT_EQ(values.values()[0], round_to(dtype, first + static_cast<float>(ranks.size() - 1)));
  }
}

TEST(Communicator, ReduceScatterIsAPartOfTheSum) {
  const Communicator ranks = dist::world();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const Part part = dist::part_of(problem.count, ranks.size(), ranks.rank());
    const auto all = sum_of_all(problem.seed, ranks, problem.dtype, problem.count);
    const std::vector<float> expected(all.begin() + part.begin,
                                      all.begin() + part.begin + part.count);
    const auto own = all_held(problem.seed, ranks.rank(), problem.count);
    const Tensor values(problem.dtype, own), out(problem.dtype, part.count);
    ranks.reduce_scatter(Exec(), values.ref(), out.ref()).wait();
    EXPECT_EQ(out.values(), expected);
    EXPECT_EQ(values.values(), own) << "the input stays";
    ranks.reduce_scatter(Exec(), values.ref(), values.part(part)).wait();
    const auto after = values.values();
    EXPECT_EQ(
        std::vector<float>(after.begin() + part.begin, after.begin() + part.begin + part.count),
        expected)
        << "in place";
  }
}

TEST(Communicator, AllGatherIsWhatAllHold) {
  const Communicator ranks = dist::world();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const auto expected = all_held(problem.seed, 0, problem.count);
    const Part part = dist::part_of(problem.count, ranks.size(), ranks.rank());
    const Tensor own(problem.dtype, std::vector<float>(expected.begin() + part.begin,
                                                       expected.begin() + part.begin + part.count));
    const Tensor all(problem.dtype, problem.count);
    ranks.all_gather(Exec(), own.ref(), all.ref()).wait();
    EXPECT_EQ(all.values(), expected);
  }
}

TEST(Communicator, AllToAllTurnsRanksAndParts) {
  const Communicator ranks = dist::world();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const std::int64_t part = problem.count / ranks.size();
    const std::int64_t count = part * ranks.size();
    const Tensor from(problem.dtype, all_held(problem.seed, ranks.rank(), count));
    const Tensor to(problem.dtype, count);
    ranks.all_to_all(Exec(), from.ref(), to.ref()).wait();
    std::vector<float> expected;
    for (int r = 0; r < ranks.size(); ++r) {
      for (std::int64_t i = 0; i < part; ++i) {
        expected.push_back(held(problem.seed, r, ranks.rank() * part + i));
      }
    }
    EXPECT_EQ(to.values(), expected);
  }
}

TEST(Communicator, BroadcastIsWhatTheRootHolds) {
  const Communicator ranks = dist::world();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const int root = static_cast<int>(problem.seed % static_cast<unsigned>(ranks.size()));
    const Tensor values(problem.dtype, all_held(problem.seed, ranks.rank(), problem.count));
    ranks.broadcast(Exec(), values.ref(), root).wait();
    EXPECT_EQ(values.values(), all_held(problem.seed, root, problem.count));
  }
}

TEST(Communicator, SendAndRecvInARing) {
  const Communicator ranks = dist::world();
  if (ranks.size() == 1) GTEST_SKIP() << "one rank";
  const int next = (ranks.rank() + 1) % ranks.size();
  const int last = (ranks.rank() + ranks.size() - 1) % ranks.size();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const Tensor from(problem.dtype, all_held(problem.seed, ranks.rank(), problem.count));
    const Tensor first(problem.dtype, problem.count), second(problem.dtype, problem.count);
    // Two under way; they arrive in the order in which they were sent.
    auto sent = ranks.send(Exec(), from.ref(), next);
    auto sent_again = ranks.send(Exec(), first.ref(), next);
    ranks.recv(Exec(), second.ref(), last).wait();
    EXPECT_EQ(second.values(), all_held(problem.seed, last, problem.count));
    ranks.recv(Exec(), second.ref(), last).wait();
    EXPECT_EQ(second.values(), first.values());
    sent_again.wait();
    sent.wait();
  }
}

TEST(Communicator, SeveralUnderWayEndInAnyOrder) {
  const Communicator ranks = dist::world();
  constexpr std::int64_t count = 1'500'001;
  const Tensor a(Dtype::f32, all_held(1, ranks.rank(), count));
  const Tensor b(Dtype::bf16, all_held(2, ranks.rank(), count));
  const Tensor c(Dtype::f16, all_held(3, ranks.rank(), 17));
  auto first = ranks.all_reduce(Exec(), a.ref());
  auto second = ranks.all_reduce(Exec(), b.ref());
  auto third = ranks.broadcast(Exec(), c.ref(), 0);
  // Every rank waits in an order of its own.
  if (ranks.rank() % 2 == 0) {
    third.wait();
    first.wait();
    second.wait();
  } else {
    while (!second.advance()) {
    }
    third.wait();
    first.wait();
  }
  EXPECT_EQ(a.values(), sum_of_all(1, ranks, Dtype::f32, count));
  EXPECT_EQ(b.values(), sum_of_all(2, ranks, Dtype::bf16, count));
  EXPECT_EQ(c.values(), all_held(3, 0, 17));
}

TEST(Communicator, SplitsIntoGroups) {
  const Communicator ranks = dist::world();
  const int color = ranks.rank() % 2;
  const Communicator group = ranks.split(color, -ranks.rank());  // the last first
  EXPECT_EQ(group.size(), (ranks.size() + (color == 0 ? 1 : 0)) / 2);
  const std::vector<double> members = group.gather(ranks.rank());
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(static_cast<int>(members[i]) % 2, color);
    if (i > 0) {
      EXPECT_LT(members[i], members[i - 1]);
    }
  }
  EXPECT_EQ(members[static_cast<std::size_t>(group.rank())], ranks.rank());
  const Tensor values(Dtype::f32, std::vector{static_cast<float>(ranks.rank())});
  group.all_reduce(Exec(), values.ref()).wait();
  double expected = 0;
  for (const double member : members) expected += member;
  EXPECT_EQ(values.values()[0], expected);
}

TEST(Communicator, SumsAndTextsAndMessages) {
  const Communicator ranks = dist::world();
  double expected = 0.1;
  for (int r = 1; r < ranks.size(); ++r) expected += 0.1 * (r + 1);
  EXPECT_EQ(ranks.sum(0.1 * (ranks.rank() + 1)), expected);
  const int last = ranks.size() - 1;
  EXPECT_EQ(ranks.broadcast_text(ranks.rank() == last ? "from the last" : "", last),
            "from the last");
  if (ranks.size() == 1) return;
  ranks.barrier();
  if (ranks.rank() != 0) {
    const auto bytes = static_cast<std::byte>(ranks.rank());
    ranks.send_message(std::span(&bytes, 1), 0);
    return;
  }
  int seen = 0;
  for (int i = 1; i < ranks.size(); ++i) {
    const dist::Message message = ranks.receive_message();
    ASSERT_EQ(message.bytes.size(), 1U);
    EXPECT_EQ(std::to_integer<int>(message.bytes[0]), message.source);
    seen += message.source;
  }
  EXPECT_EQ(seen, ranks.size() * (ranks.size() - 1) / 2);
  EXPECT_FALSE(ranks.has_message());
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Communicator, RefusesWhatDoesNotFit) {
  const Communicator ranks = dist::world();
  const int size = ranks.size();
  const Tensor values(Dtype::f32, std::int64_t{6} * size);
  TensorRef<2> gaps(values.ref().data, Dtype::f32, {2, 2});
  gaps.stride[0] = 3;
  EXPECT_EQ(refusal([&] { ranks.all_reduce(Exec(), gaps).wait(); }),
            "all_reduce: tensor (2, 2): axis 0 has stride 3, expected 2: a dense tensor");
  EXPECT_EQ(refusal([&] {
              ranks.reduce_scatter(Exec(), values.ref(), values.part({0, 5})).wait();
            }),
            "reduce_scatter: part: holds 5 elements, expected 6, rank " +
                std::to_string(ranks.rank()) + "'s part of " + std::to_string(6 * size));
  EXPECT_EQ(
      refusal([&] {
        ranks.all_gather(Exec(), TensorRef<1>(values.ref().data, Dtype::bf16, {6}), values.ref())
            .wait();
      }),
      "all_gather: part: holds bf16, expected f32");
  EXPECT_EQ(
      refusal([&] { ranks.broadcast(Exec(), values.ref(), size).wait(); }),
      "broadcast: root " + std::to_string(size) + ", expected 0 to " + std::to_string(size - 1));
  EXPECT_EQ(refusal([&] { ranks.send(Exec(), values.ref(), ranks.rank()).wait(); }),
            "send: rank " + std::to_string(ranks.rank()) + ", expected another one of " +
                std::to_string(size) + " than " + std::to_string(ranks.rank()));
  if (size == 1) return;
  const std::string uneven = refusal([&] {
    ranks.all_to_all(Exec(), values.part({0, 1}), values.part({0, 1})).wait();
  });
  EXPECT_EQ(uneven, "all_to_all: from: holds 1 elements, expected a multiple of the " +
                        std::to_string(size) + " ranks");
}

TEST(Communicator, NamesTheRankThatSentAnotherSize) {
  const Communicator ranks = dist::world();
  if (ranks.size() == 1) GTEST_SKIP() << "one rank";
  const Tensor values(Dtype::f32, 8);
  if (ranks.rank() == 1) ranks.send(Exec(), values.part({0, 3}), 0).wait();
  if (ranks.rank() != 0) return;
  try {
    ranks.recv(Exec(), values.ref(), 1).wait();
    FAIL() << "three elements are not eight";
  } catch (const dist::Error& error) {
    EXPECT_EQ(error.what(), ranks.where() + ": recv: rank 1 sent 12 bytes, expected 32");
  }
}

/// Not a test of its own: one rank dies between two steps of an operation, named by
/// `--operation`, and the launcher must end the others, who wait for it
/// (tests/dist/test_killed.py).
TEST(Communicator, DISABLED_OneDies) {
  const Communicator ranks = dist::world();
  const std::string operation = test::argument("operation", "all_reduce");
  const int victim = std::stoi(test::argument("victim", "1"));
  const std::int64_t count = std::int64_t{3} << 20;  // several rounds; three ranks divide it
  const Tensor values(Dtype::f32, count), other(Dtype::f32, count);
  const Part part = dist::part_of(count, ranks.size(), ranks.rank());
  for (int repeat = 0; repeat < 1000; ++repeat) {
    dist::Request request;
    if (operation == "all_reduce") request = ranks.all_reduce(Exec(), values.ref());
    if (operation == "reduce_scatter") {
      request = ranks.reduce_scatter(Exec(), values.ref(), other.part(part));
    }
    if (operation == "all_gather")
      request = ranks.all_gather(Exec(), values.part(part), other.ref());
    if (operation == "all_to_all") request = ranks.all_to_all(Exec(), values.ref(), other.ref());
    if (operation == "broadcast") request = ranks.broadcast(Exec(), values.ref(), 0);
    if (operation == "barrier") ranks.barrier();
    if (repeat == 2 && ranks.rank() == victim) std::raise(SIGKILL);
    request.wait();
    if (operation == "send_recv") {
      auto sent = ranks.send(Exec(), values.ref(), (ranks.rank() + 1) % ranks.size());
      ranks.recv(Exec(), other.ref(), (ranks.rank() + ranks.size() - 1) % ranks.size()).wait();
      sent.wait();
    }
  }
}

}  // namespace
}  // namespace katt
