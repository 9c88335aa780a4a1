// Mutations of memory/transfer.hpp: the test removes each fence and each event that orders its
// copies, one after the other, and a result must then be wrong on a device in software, which
// executes its work as late as it may and in any order that streams and events allow. A real device
// may be right by chance, so there the test only covers the unchanged code.
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "core/device_instances.hpp"
#include "memory/transfer.hpp"
#include "tests/device.hpp"

#if defined(KATT_HAS_CUDA)

namespace katt::memory {
namespace {

/// Does the same as impl::Ordering, except the removed part.
struct Forgetful {
  static inline std::string left_out;
  static inline std::set<std::string> met;

  static bool keeps(const std::string& label) {
    met.insert(label);
    return label != left_out;
  }
  static void fence(const Kokkos::Cuda& exec, const char* label) {
    if (keeps(label)) impl::Ordering::fence(exec, label);
  }
  static void follow(const Kokkos::Cuda& later, const Kokkos::Cuda& earlier, const char* label) {
    if (keeps(label)) impl::Ordering::follow(later, earlier, label);
  }
};

/// Places whose absence no check notices, and the reason.
const std::set<std::string> unseen{
    // Kokkos waits for a device before it gives memory back that the host shares with it.
    "katt::memory::transfer: uploads, at its end"};

using Way = Transfer<Kokkos::Cuda, true, Forgetful>;
using OnDevice = Kokkos::View<std::byte*, Kokkos::CudaSpace>;

constexpr std::size_t chunk_bytes = 1024;
constexpr std::size_t bytes = 5 * chunk_bytes;

std::vector<std::byte> pattern() {
  std::vector<std::byte> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 7 + i / 251);
  return values;
}

/// Memory of a device, and an instance to which work is given that a transfer has to wait for, or
/// that has to wait for one.
struct Stage {
  Kokkos::Cuda exec = instance_on(Kokkos::Cuda().cuda_device());
  Kokkos::Cuda other = instance_on(Kokkos::Cuda().cuda_device());
  OnDevice first = OnDevice(Kokkos::view_alloc(exec, "katt::test::first"), bytes);
  OnDevice second = OnDevice(Kokkos::view_alloc(exec, "katt::test::second"), bytes);

  Stage() { Kokkos::fence("katt::test: a stage"); }

  void fill(const Kokkos::Cuda& by, const OnDevice& target, int value) const {
    Kokkos::deep_copy(by, target, static_cast<std::byte>(value));
  }
  /// The bytes as work that `by` is given now sees them.
  [[nodiscard]] std::vector<std::byte> seen_by(const Kokkos::Cuda& by,
                                               const OnDevice& source) const {
    using Pinned = Kokkos::View<std::byte*, Kokkos::CudaHostPinnedSpace>;
    const Pinned there(Kokkos::view_alloc(Kokkos::WithoutInitializing, "katt::test::seen"), bytes);
    Kokkos::deep_copy(by, there, source);
    by.fence("katt::test: what is seen");
    return {there.data(), there.data() + bytes};
  }
};

/// True when every promise of a transfer holds, tried once.
bool transfers_hold() {
  const std::vector<std::byte> source = pattern();
  bool holds = true;
  const auto expect = [&](const std::vector<std::byte>& got, const std::vector<std::byte>& wanted) {
    holds = holds && got == wanted;
  };
  {  // An upload follows the instance's work, and later work follows the upload.
    const Stage at;
    Way transfer(at.exec, chunk_bytes);
    transfer.upload(at.second.data(), source);  // has its chunks: to allocate is to wait
    at.fill(at.exec, at.first, 9);
    transfer.upload(at.first.data(), source);
    transfer.wait();
    expect(at.seen_by(at.other, at.first), source);
    at.exec.fence("katt::test: what was filled before");
    expect(at.seen_by(at.other, at.first), source);
  }
  {  // A download follows the uploads before it: one chunk, which the other instance brings back,
    const Stage at;
    Way transfer(at.exec, bytes);
    std::vector<std::byte> back(bytes);
    transfer.upload(at.first.data(), source);
    transfer.download(at.first.data(), back);
    expect(back, source);
  }
  {  // and the instance's work.
    const Stage at;
    Way transfer(at.exec, chunk_bytes);
    std::vector<std::byte> back(bytes);
    transfer.upload(at.second.data(), source);
    at.fill(at.exec, at.first, 5);
    transfer.download(at.first.data(), back);
    expect(back, std::vector<std::byte>(bytes, std::byte{5}));
  }
  {  // The end of a transfer waits for its uploads.
    const Stage at;
    Way(at.exec, chunk_bytes).upload(at.first.data(), source);
    expect(at.seen_by(at.other, at.first), source);
  }
  return holds;
}

bool copies_hold() {
  bool holds = true;
  const Stage at;
  at.fill(at.exec, at.first, 1);
  copy<Kokkos::Cuda, Forgetful>(at.exec, at.first.data(), at.other, at.second.data(), bytes);
  at.fill(at.exec, at.first, 2);
  // With either wait first, the copy holds the source's earlier content.
  static bool other_first = false;
  other_first = !other_first;
  (other_first ? at.other : at.exec).fence("katt::test: one");
  (other_first ? at.exec : at.other).fence("katt::test: the other");
  holds = at.seen_by(at.other, at.second) == std::vector<std::byte>(bytes, std::byte{1});
  return holds && at.seen_by(at.exec, at.first) == std::vector<std::byte>(bytes, std::byte{2});
}

/// Both, often enough for any order of streams.
bool all_hold() {
  constexpr int repeats = 8;
  for (int i = 0; i < repeats; ++i) {
    if (!transfers_hold() || !copies_hold()) return false;
  }
  return true;
}

TEST(TransferMutations, EveryFenceAndEventIsMissed) {
  if (Kokkos::num_devices() < 1) GTEST_SKIP() << "skipped: no device";
  Forgetful::met.clear();
  Forgetful::left_out.clear();
  ASSERT_TRUE(all_hold());
  const std::set<std::string> sites = Forgetful::met;
  EXPECT_EQ(sites.size(), 10U) << "a place that no test knows, or one that none comes to";
  if (!test::device_is_emulated()) return;
  for (const std::string& site : sites) {
    Forgetful::left_out = site;
    EXPECT_EQ(all_hold(), unseen.contains(site)) << "without: " << site;
  }
  Forgetful::left_out.clear();
}

}  // namespace
}  // namespace katt::memory

#else

TEST(TransferMutations, EveryFenceAndEventIsMissed) {
  GTEST_SKIP() << "skipped: no device in this build";
}

#endif
