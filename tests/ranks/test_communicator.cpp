#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <random>

#include <Kokkos_Core.hpp>

#include "core/execution.hpp"
#include "ranks/communicator.hpp"
#include "ranks/operations.hpp"
#include "ranks/traffic.hpp"
#include "tests/arguments.hpp"
#include "tests/device.hpp"
#include "tests/message_of.hpp"
#include "tests/ranks/held.hpp"

/// Run by CTest alone and under mpirun with 2, 3, 4 and 8 ranks. Every rank knows what the others
/// hold: the reference gathers it and computes on the host.
namespace katt {
namespace {

using test::all_held;
using test::held;
using test::Tensor;
using Exec = Kokkos::DefaultExecutionSpace;
using ranks::Communicator;
using ranks::Part;

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

/// Sums on a device in software take several rounds, too.
class ShortRounds : public ::testing::Environment {
 public:
  void SetUp() override {
    if (test::device_is_emulated()) ranks::impl::device_round_bytes = std::size_t{4} << 12;
  }
};
const ::testing::Environment* const short_rounds =
    ::testing::AddGlobalTestEnvironment(new ShortRounds);  // NOLINT: GoogleTest owns it

/// Problems over sizes from nothing to several rounds of messages.
std::vector<Problem> problems() {
  const Communicator ranks = ranks::world();
  const std::string seed = ranks.broadcast_text(std::to_string(std::random_device{}()), 0);
  std::mt19937_64 random(std::stoull(seed));
  std::vector<Problem> all;
  for (const Dtype dtype : all_dtypes) {
    for (const std::int64_t count : test::some_of<std::int64_t>({0, 1, 2, 7, 64, 1000}, 3)) {
      all.push_back({random(), dtype, count});
    }
    for (int i = 0; i < (test::device_is_emulated() ? 1 : 6); ++i) {
      const auto bits = static_cast<unsigned>(random() % 14U);
      all.push_back(
          {random(), dtype, static_cast<std::int64_t>(random() % (std::uint64_t{2} << bits))});
    }
    // In software kernels sum slowly; there rounds are short (ShortRounds).
    const std::size_t bytes = std::size_t{4} << (test::device_is_emulated() ? 12 : 20);
    const auto round = static_cast<std::int64_t>(bytes / size_of(dtype));
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
        const Part part = ranks::part_of(n, ranks, r);
        EXPECT_EQ(part.begin, next);
        EXPECT_GE(part.count, 0);
        next += part.count;
      }
      EXPECT_EQ(next, n);
    }
  }
}

TEST(Communicator, AllReduceIsTheSumInOrder) {
  const Communicator ranks = ranks::world();
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
  const Communicator ranks = ranks::world();
  for (const Dtype dtype : all_dtypes) {
    const float first = dtype == Dtype::bf16 ? 256.0F : 2048.0F;
    const Tensor values(dtype, std::vector{ranks.rank() == 0 ? first : 1.0F});
    ranks.all_reduce(Exec(), values.ref()).wait();
    EXPECT_EQ(values.values()[0], round_to(dtype, first + static_cast<float>(ranks.size() - 1)));
  }
}

TEST(Communicator, SumsAreInTheOrderOfTheRanks) {
  // From the last rank to the first the small term would be lost.
  const Communicator ranks = ranks::world();
  if (ranks.size() < 3) GTEST_SKIP() << "fewer than three ranks";
  constexpr float large = 32768.0F, small = 1.0F / 1024;
  const std::array terms{large, -large, small};
  const auto rank = static_cast<std::size_t>(ranks.rank());
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::f32}) {
    const Tensor values(dtype, std::vector(5, rank < 3 ? terms[rank] : 0.0F));
    ranks.all_reduce(Exec(), values.ref()).wait();
    if (dtype == Dtype::f32 && ranks::device_transports() == "NCCL") continue;  // its own order
    EXPECT_EQ(values.values(), std::vector(5, small)) << name_of(dtype);
  }
}

TEST(Communicator, ReduceScatterIsAPartOfTheSum) {
  const Communicator ranks = ranks::world();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const Part part = ranks::part_of(problem.count, ranks.size(), ranks.rank());
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
  const Communicator ranks = ranks::world();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const auto expected = all_held(problem.seed, 0, problem.count);
    const Part part = ranks::part_of(problem.count, ranks.size(), ranks.rank());
    const Tensor own(problem.dtype, std::vector<float>(expected.begin() + part.begin,
                                                       expected.begin() + part.begin + part.count));
    const Tensor all(problem.dtype, problem.count);
    ranks.all_gather(Exec(), own.ref(), all.ref()).wait();
    EXPECT_EQ(all.values(), expected);
  }
}

TEST(Communicator, AllToAllTurnsRanksAndParts) {
  const Communicator ranks = ranks::world();
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
  const Communicator ranks = ranks::world();
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(text_of(problem));
    const int root = static_cast<int>(problem.seed % static_cast<unsigned>(ranks.size()));
    const Tensor values(problem.dtype, all_held(problem.seed, ranks.rank(), problem.count));
    ranks.broadcast(Exec(), values.ref(), root).wait();
    EXPECT_EQ(values.values(), all_held(problem.seed, root, problem.count));
  }
}

TEST(Communicator, SendAndRecvInARing) {
  const Communicator ranks = ranks::world();
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
  const Communicator ranks = ranks::world();
  const std::int64_t count = test::device_is_emulated() ? 15'001 : 1'500'001;
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

/// An operation that was started, and what its tensors must hold when it has ended.
struct Started {
  ranks::Request request;
  Tensor result;
  std::vector<float> expected;
  std::vector<Tensor> kept{};  ///< what it reads
};

TEST(Communicator, ManyOperationsUnderWayDoNotMeet) {
  const Communicator ranks = ranks::world();
  const std::string seed = ranks.broadcast_text(std::to_string(std::random_device{}()), 0);
  SCOPED_TRACE("seed " + seed);
  std::mt19937_64 random(std::stoull(seed));  // the same numbers on every rank
  std::mt19937_64 own(std::stoull(seed) + static_cast<std::uint64_t>(ranks.rank()));
  const int size = ranks.size();
  const int next = (ranks.rank() + 1) % size;
  const int last = (ranks.rank() + size - 1) % size;
  for (int repeat = 0; repeat < (test::device_is_emulated() ? 3 : 20); ++repeat) {
    std::vector<Started> started;
    for (int i = 0; i < 8; ++i) {
      const Dtype dtype = all_dtypes[random() % all_dtypes.size()];
      const std::uint64_t name = random();
      const auto count = static_cast<std::int64_t>(random() % 3000) / size * size;
      const auto held_here = all_held(name, ranks.rank(), count);
      const Part part = ranks::part_of(count, size, ranks.rank());
      const auto slice = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + part.begin, all.begin() + part.begin + part.count);
      };
      switch (random() % 6) {
        case 0: {
          Tensor values(dtype, held_here);
          auto request = ranks.all_reduce(Exec(), values.ref());
          started.push_back({std::move(request), values, sum_of_all(name, ranks, dtype, count)});
          break;
        }
        case 1: {
          const Tensor values(dtype, held_here), to(dtype, part.count);
          auto request = ranks.reduce_scatter(Exec(), values.ref(), to.ref());
          started.push_back(
              {std::move(request), to, slice(sum_of_all(name, ranks, dtype, count)), {values}});
          break;
        }
        case 2: {
          const auto all = all_held(name, 0, count);
          const Tensor from(dtype, slice(all)), to(dtype, count);
          auto request = ranks.all_gather(Exec(), from.ref(), to.ref());
          started.push_back({std::move(request), to, all, {from}});
          break;
        }
        case 3: {
          const Tensor from(dtype, held_here), to(dtype, count);
          std::vector<float> expected;
          for (int r = 0; r < size; ++r) {
            const std::int64_t begin = count / size * ranks.rank();
            for (std::int64_t k = 0; k < count / size; ++k) {
              expected.push_back(held(name, r, begin + k));
            }
          }
          auto request = ranks.all_to_all(Exec(), from.ref(), to.ref());
          started.push_back({std::move(request), to, expected, {from}});
          break;
        }
        case 4: {
          const int root = static_cast<int>(name % static_cast<unsigned>(size));
          const Tensor values(dtype, held_here);
          auto request = ranks.broadcast(Exec(), values.ref(), root);
          started.push_back({std::move(request), values, all_held(name, root, count)});
          break;
        }
        default: {
          if (size == 1) break;
          const Tensor from(dtype, held_here), to(dtype, count);
          auto sent = ranks.send(Exec(), from.ref(), next);
          auto received = ranks.recv(Exec(), to.ref(), last);
          started.push_back({std::move(sent), from, held_here});
          started.push_back({std::move(received), to, all_held(name, last, count), {from}});
        }
      }
    }
    std::ranges::shuffle(started, own);  // every rank waits in an order of its own
    for (Started& one : started) {
      one.request.wait();
      EXPECT_EQ(one.result.values(), one.expected);
    }
  }
}

TEST(Communicator, SplitsIntoGroups) {
  const Communicator ranks = ranks::world();
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
  const Communicator ranks = ranks::world();
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
    const ranks::Message message = ranks.receive_message();
    ASSERT_EQ(message.bytes.size(), 1U);
    EXPECT_EQ(std::to_integer<int>(message.bytes[0]), message.source);
    seen += message.source;
  }
  EXPECT_EQ(seen, ranks.size() * (ranks.size() - 1) / 2);
  EXPECT_FALSE(ranks.has_message());
}

TEST(Communicator, RefusesWhatDoesNotFit) {
  const Communicator ranks = ranks::world();
  const int size = ranks.size();
  const Tensor values(Dtype::f32, std::int64_t{6} * size);
  TensorRef<2> gaps(values.ref().data, Dtype::f32, {2, 2});
  gaps.stride[0] = 3;
  EXPECT_EQ(test::message_of([&] { ranks.all_reduce(Exec(), gaps).wait(); }),
            "all_reduce: tensor (2, 2): axis 0 has stride 3, expected 2: a dense tensor");
  EXPECT_EQ(test::message_of([&] {
              ranks.reduce_scatter(Exec(), values.ref(), values.part({0, 5})).wait();
            }),
            "reduce_scatter: part: holds 5 elements, expected 6, rank " +
                std::to_string(ranks.rank()) + "'s part of " + std::to_string(6 * size));
  EXPECT_EQ(
      test::message_of([&] {
        ranks.all_gather(Exec(), TensorRef<1>(values.ref().data, Dtype::bf16, {6}), values.ref())
            .wait();
      }),
      "all_gather: part: holds bf16, expected f32");
  EXPECT_EQ(
      test::message_of([&] { ranks.broadcast(Exec(), values.ref(), size).wait(); }),
      "broadcast: root " + std::to_string(size) + ", expected 0 to " + std::to_string(size - 1));
  EXPECT_EQ(test::message_of([&] { ranks.send(Exec(), values.ref(), ranks.rank()).wait(); }),
            "send: rank " + std::to_string(ranks.rank()) + ", expected another one of " +
                std::to_string(size) + " than " + std::to_string(ranks.rank()));
  if (size == 1) return;
  const std::string uneven = test::message_of([&] {
    ranks.all_to_all(Exec(), values.part({0, 1}), values.part({0, 1})).wait();
  });
  EXPECT_EQ(uneven, "all_to_all: from: holds 1 elements, expected a multiple of the " +
                        std::to_string(size) + " ranks");
}

TEST(Communicator, NamesTheRankThatSentAnotherSize) {
  const Communicator ranks = ranks::world();
  if (ranks.size() == 1) GTEST_SKIP() << "one rank";
  if (ranks::device_transports().starts_with("NCCL")) GTEST_SKIP() << "NCCL does not tell";
  const Tensor values(Dtype::f32, 8);
  if (ranks.rank() == 1) ranks.send(Exec(), values.part({0, 3}), 0).wait();
  if (ranks.rank() != 0) return;
  EXPECT_EQ(test::message_of<ranks::Error>([&] { ranks.recv(Exec(), values.ref(), 1).wait(); }),
            ranks.where() + ": recv: rank 1 sent 12 bytes, expected 32");
}

/// The last: what the tests before have used is what `--transport` expects.
TEST(Communicator, TellsHowDeviceMemoryWasSent) {
  const bool is_host =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, Exec::memory_space>::accessible;
  const std::string used = ranks::device_transports();
  if (is_host || ranks::world().size() == 1) {
    EXPECT_EQ(used, "");
  } else {
    EXPECT_EQ(used, test::argument("transport", used));
    EXPECT_NE(used, "");
  }
}

/// Not a test of its own: one rank dies between two steps of an operation, named by
/// `--operation`, and the launcher must end the others, who wait for it
/// (tests/ranks/test_killed.py).
TEST(Communicator, DISABLED_OneDies) {
  const Communicator ranks = ranks::world();
  const std::string operation = test::argument("operation", "all_reduce");
  const int victim = std::stoi(test::argument("victim", "1"));
  const std::int64_t count = std::int64_t{3} << 20;  // several rounds; three ranks divide it
  const Tensor values(Dtype::f32, count), other(Dtype::f32, count);
  const Part part = ranks::part_of(count, ranks.size(), ranks.rank());
  for (int repeat = 0; repeat < 1000; ++repeat) {
    ranks::Request request;
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
