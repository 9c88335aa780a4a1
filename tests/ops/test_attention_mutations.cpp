// Mutations of the tensor-core kernels: each fence, wait, arrival and barrier in their text is
// removed, one after the other, and the emulator must see it, by a broken rule or a wrong result. A
// list names the ones that it cannot see, with the reason.

// GCC 12 makes one function of operand_a() for tiles of 2 and of 8 blocks, and then warns.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Warray-bounds"
#endif

#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention/decode/mma_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/backward_statistics.hpp"
#include "ops/attention/tensor_cores/kernels/mma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/mma_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/wgmma_backward_kernel.hpp"
#include "ops/attention/tensor_cores/kernels/wgmma_kernel.hpp"
#include "ops/attention/tensor_cores/tiles.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"
#include "tests/tile/warp_emulator.hpp"

namespace katt::attention {
namespace {

/// A synchronization in the text of a kernel.
struct Site {
  std::string file;
  std::string function;  ///< as the compiler writes it
  unsigned line = 0;
  unsigned column = 0;
  std::string operation;

  auto operator<=>(const Site&) const = default;
  [[nodiscard]] std::string text() const {
    return operation + " at " + std::filesystem::path(file).filename().string() + ":" +
           std::to_string(line) + " in " + function;
  }
};

/// A synchronization that the emulator cannot miss, and why: the first of its kind in a function.
struct Unseen {
  std::string operation;
  std::string function;
  const char* why;
};
const std::vector<Unseen> unseen{
    {"sync_warp", "::store(", "ldmatrix and wgmma, which read what is written over, meet the warp"},
    {"barrier_group", "FlashWgmmaBackwardQ<",
     "wgmma_wait meets the whole warpgroup there, on a device a warp"},
    {"barrier_group", "::compute(",
     "wgmma_wait meets the whole warpgroup there, on a device a warp"},
    {"barrier_group", "Turns<Groups, FirstBarrier>::end(",
     "for what follows on a named barrier, and nothing does"},
    {"barrier_wait", "::keep_below(", "that phase is over: a branch for the compiler"},
    {"sync_warp", "::finish_copies(", "the lanes of a warp go as far as their waits together"},
    {"barrier_wait", "::begin_values(",
     "V is announced before the K that was waited for, but the last"},
    {"sync_warp", "::attend_keys(", "ldmatrix, which reads what was copied, meets the warp"},
    {"sync_warp", "::load(Block&, unsigned int, int",
     "mma, behind the last ldmatrix, meets the warp"},
    {"barrier", "::arrives_last(", "blocks run one after the other"},
};

/// The synchronization of a kernel, and the removed part.
struct Mutation {
  std::optional<Site> left_out{};
  std::set<Site> met{};
};

/// A block that leaves out one synchronization, wherever in a run its place is met.
class ForgetfulBlock : public testing::EmulatedBlock {
 public:
  using Place = std::source_location;

  ForgetfulBlock(const testing::EmulatedBlock& block, Mutation& mutation)
      : testing::EmulatedBlock(block), mutation_(mutation) {}

  void barrier(Place at = Place::current()) const {
    if (keeps("barrier", at)) EmulatedBlock::barrier();
  }
  void sync_warp(Place at = Place::current()) const {
    if (keeps("sync_warp", at)) EmulatedBlock::sync_warp();
  }
  void commit(Place at = Place::current()) {
    if (keeps("commit", at)) EmulatedBlock::commit();
  }
  template <int Pending>
  void wait(Place at = Place::current()) {
    if (keeps("wait", at)) EmulatedBlock::wait<Pending>();
  }
  void fence_async_proxy(Place at = Place::current()) {
    if (keeps("fence_async_proxy", at)) EmulatedBlock::fence_async_proxy();
  }
  void barrier_init(unsigned offset, int count, Place at = Place::current()) const {
    if (keeps("barrier_init", at)) EmulatedBlock::barrier_init(offset, count);
  }
  void barrier_arrive(unsigned offset, Place at = Place::current()) const {
    if (keeps("barrier_arrive", at)) EmulatedBlock::barrier_arrive(offset);
  }
  void barrier_arrive_expecting(unsigned offset, unsigned bytes,
                                Place at = Place::current()) const {
    if (keeps("barrier_arrive_expecting", at)) {
      EmulatedBlock::barrier_arrive_expecting(offset, bytes);
    }
  }
  void load_box(unsigned target, const tile::TensorMap& map, const int (&from)[5], unsigned barrier,
                Place at = Place::current()) const {
    if (keeps("load_box", at)) EmulatedBlock::load_box(target, map, from, barrier);
  }
  void barrier_wait(unsigned offset, unsigned parity, Place at = Place::current()) const {
    if (keeps("barrier_wait", at)) EmulatedBlock::barrier_wait(offset, parity);
  }
  void barrier_group(int id, int threads, Place at = Place::current()) const {
    if (keeps("barrier_group", at)) EmulatedBlock::barrier_group(id, threads);
  }
  void barrier_group_arrive(int id, int threads, Place at = Place::current()) const {
    if (keeps("barrier_group_arrive", at)) EmulatedBlock::barrier_group_arrive(id, threads);
  }
  void wgmma_fence(Place at = Place::current()) const {
    if (keeps("wgmma_fence", at)) EmulatedBlock::wgmma_fence();
  }
  void wgmma_commit(Place at = Place::current()) const {
    if (keeps("wgmma_commit", at)) EmulatedBlock::wgmma_commit();
  }
  template <int Pending>
  void wgmma_wait(Place at = Place::current()) const {
    if (keeps("wgmma_wait", at)) EmulatedBlock::wgmma_wait<Pending>();
  }

 private:
  bool keeps(const char* operation, const Place& at) const {
    const Site site{at.file_name(), at.function_name(), at.line(), at.column(), operation};
    mutation_.met.insert(site);
    return mutation_.left_out != site;
  }

  Mutation& mutation_;
};

/// The emulator's report on a run of all blocks; "" when it finds no fault.
template <class Kernel>
std::string emulate(const Kernel& kernel, Mutation& mutation, std::uint32_t seed) {
  const auto run = [&](const testing::EmulatedBlock& block, std::int64_t item) {
    ForgetfulBlock forgetful(block, mutation);
    kernel.run(forgetful, item);
  };
  return testing::emulate_grid(kernel, run, seed);
}

/// The same of the kernels that run(args) emulates, and then that of the reference.
template <class Run>
std::string run_forward_kernel(const ProblemData& data, const Run& run) {
  std::string failure;
  const Outputs made = run_problem(data, Backend::serial, HeadLayout::bhsd,
                                   [&](const ForwardArgs& args) { failure = run(args); });
  return failure.empty() ? Reference(data).compare(made).status.reason() : failure;
}

template <class Kernel, class... More>
std::string run_flash_kernel(const ProblemData& data, Mutation& mutation, std::uint32_t seed,
                             const More&... more) {
  return run_forward_kernel(data, [&](const ForwardArgs& args) {
    return emulate(Kernel(args, more...), mutation, seed);
  });
}

/// Kernels: of a backward pass, in the order in which they run.
template <class... Kernels>
std::string run_backward_kernels(const ProblemData& data, Mutation& mutation, std::uint32_t seed) {
  std::string failure;
  const auto run = [&](const BackwardArgs& args) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<impl::RowStatistics> statistics(
        impl::backward_statistics_bytes(args) / sizeof(impl::RowStatistics),
        {{{nan, nan}, {nan, nan}}, {{nan, nan}}});
    ((failure =
          failure.empty() ? emulate(Kernels(args, statistics.data()), mutation, seed) : failure),
     ...);
  };
  const Outputs made = run_problem(data, Backend::serial, HeadLayout::bhsd, {"flash", {}}, run);
  return failure.empty() ? Reference(data, true).compare(made).status.reason() : failure;
}

/// Decoding by `blocks` blocks.
template <int HeadDim>
std::string run_decode_kernel(const ProblemData& data, std::int64_t blocks, Mutation& mutation,
                              std::uint32_t seed) {
  return run_forward_kernel(data, [&](const ForwardArgs& args) {
    const impl::DecodeGrid grid(args, 64, blocks);
    const bench::Buffer workspace =
        testing::poisoned_workspace(Backend::serial, impl::PieceBytes(grid, HeadDim).all());
    using Kernel = impl::DecodeMma<bf16, HeadDim, false, impl::DecodeShape<16, 2, 2, 1>>;
    return emulate(Kernel(args, {}, grid, std::uint64_t{1} << 40, workspace.workspace()), mutation,
                   seed);
  });
}

using Run = std::function<std::string(Mutation&, std::uint32_t seed)>;

/// Schedules that are tried before a mutation counts as unseen.
constexpr std::uint32_t schedules = 12;

void expect_each_is_needed(const Run& run, std::size_t fewest) {
#if defined(KATT_ADDRESS_SANITIZER)
  GTEST_SKIP() << "skipped: threads that wait for ever keep their memory";
#endif
  Mutation whole;
  for (std::uint32_t seed = 0; seed < schedules; ++seed) ASSERT_EQ(run(whole, seed), "");
  EXPECT_GE(whole.met.size(), fewest);
  std::map<const Unseen*, std::pair<std::string, unsigned>> excused;  // and the line of each
  for (const Site& site : whole.met) {                                // by file, function and line
    const auto known = std::ranges::find_if(unseen, [&](const Unseen& one) {
      return site.operation == one.operation &&
             site.function.find(one.function) != std::string::npos;
    });
    if (known != unseen.end()) {
      const std::pair line(site.file, site.line);
      if (excused.emplace(&*known, line).first->second == line) continue;
    }
    Mutation mutation{.left_out = site};
    bool seen = false;
    for (std::uint32_t seed = 0; seed < schedules && !seen; ++seed) {
      seen = !run(mutation, seed).empty();
    }
    EXPECT_TRUE(seen) << "without " << site.text() << " nothing goes wrong";
  }
}

TEST(AttentionMutations, OfFlashMma) {
  const auto data = make_problem({1, 1, 1, 64, 330, 40}, Dtype::bf16);
  expect_each_is_needed(
      [&](Mutation& mutation, std::uint32_t seed) {
        return run_flash_kernel<impl::FlashMma<bf16, 64, 64, 64>>(*data, mutation, seed);
      },
      7);
}

TEST(AttentionMutations, OfFlashWgmma) {
  // One tile, which is waited for from the beginning; rows that no boxes describe; and many tiles
  // of one block, which use every stage again.
  const auto one = make_problem({1, 1, 1, 128, 50, 40}, Dtype::bf16);
  auto rows = make_problem({1, 3, 1, 50, 100, 40}, Dtype::bf16);
  rows->kv_len = {70};
  rows->link();
  const auto many = make_problem({1, 1, 1, 200, 330, 40}, Dtype::bf16);
  expect_each_is_needed(
      [&](Mutation& mutation, std::uint32_t seed) {
        using Kernel = impl::FlashWgmma<bf16, 64, 128, 64>;
        for (const ProblemData* data : {one.get(), rows.get(), many.get()}) {
          const std::string failure = run_flash_kernel<Kernel>(*data, mutation, seed, NoRule{}, 1);
          if (!failure.empty()) return failure;
        }
        return std::string();
      },
      24);
}

TEST(AttentionMutations, OfDecodeMma) {
  // Pieces of several row tiles in a block, tiles that use every stage again; and query rows in
  // shared memory.
  const auto pieces = make_problem({1, 6, 3, 1, 400, 40}, Dtype::bf16);
  const auto wide = make_problem({1, 4, 2, 1, 200, 136}, Dtype::bf16);
  expect_each_is_needed(
      [&](Mutation& mutation, std::uint32_t seed) {
        const std::string failure = run_decode_kernel<64>(*pieces, 4, mutation, seed);
        return failure.empty() ? run_decode_kernel<256>(*wide, 1, mutation, seed) : failure;
      },
      10);
}

TEST(AttentionMutations, OfFlashMmaBackward) {
  auto data = make_problem({1, 1, 1, 200, 200, 40}, Dtype::bf16);
  add_dout(*data);
  expect_each_is_needed(
      [&](Mutation& mutation, std::uint32_t seed) {
        using Queries = impl::FlashMmaBackwardQ<bf16, 64, impl::backward_block_rows, 64>;
        using Keys = impl::FlashMmaBackwardKv<bf16, 64, 64, 64>;
        return run_backward_kernels<Queries, Keys>(*data, mutation, seed);
      },
      9);
}

TEST(AttentionMutations, OfFlashWgmmaBackward) {
  // Many tiles of rows, and of keys, which use every stage again.
  const auto rows = make_problem({1, 1, 1, 600, 50, 40}, Dtype::bf16);
  const auto keys = make_problem({1, 1, 1, 50, 1100, 40}, Dtype::bf16);
  add_dout(*rows);
  add_dout(*keys);
  expect_each_is_needed(
      [&](Mutation& mutation, std::uint32_t seed) {
        using Statistics = impl::BackwardStatistics<bf16, 64>;
        using Queries = impl::FlashWgmmaBackwardQ<bf16, 64, impl::wgmma_backward_q_tile(64).q,
                                                  impl::wgmma_backward_q_tile(64).kv>;
        using Keys = impl::FlashWgmmaBackwardKv<bf16, 64, 64, 128>;
        const auto fails = [&](const ProblemData& data) {
          return run_backward_kernels<Statistics, Queries, Keys>(data, mutation, seed);
        };
        const std::string failure = fails(*rows);
        return failure.empty() ? fails(*keys) : failure;
      },
      20);
}

}  // namespace
}  // namespace katt::attention
