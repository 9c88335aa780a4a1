#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <Kokkos_Core.hpp>

#include "memory/tracker.hpp"

namespace katt {
namespace {

using Bytes = Kokkos::View<std::byte*, Kokkos::HostSpace>;

memory::SpaceUsage host_usage() {
  const auto spaces = memory::usage();
  const auto host = std::ranges::find(spaces, "Host", &memory::SpaceUsage::space);
  return host == spaces.end() ? memory::SpaceUsage{} : *host;
}

class Tracker : public testing::Test {
 protected:
  static std::atomic<int>& foreign_calls() {
    static std::atomic<int> calls = 0;
    return calls;
  }
  static std::optional<Bytes>& older() {
    static std::optional<Bytes> view;
    return view;
  }

  static void SetUpTestSuite() {
    older() = Bytes("allocated before install", 1 << 20);
    // a tool that was there first
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char*, const void*, std::uint64_t) {
          ++foreign_calls();
        });
    memory::install();
    memory::install();
  }
  static void TearDownTestSuite() { older().reset(); }
};

TEST_F(Tracker, FreeingWhatWasThereBeforeCountsNothing) {
  const std::size_t before = memory::live_bytes();
  older().reset();
  EXPECT_EQ(memory::live_bytes(), before);
}

TEST_F(Tracker, LiveFollowsAllocationsAndFrees) {
  const std::size_t before = memory::live_bytes();
  {
    const Bytes first("first", 1000);
    EXPECT_EQ(memory::live_bytes(), before + 1000);
    const Bytes shared = first;
    EXPECT_EQ(memory::live_bytes(), before + 1000);
    const Kokkos::View<double*, Kokkos::HostSpace> second("second", 100);
    EXPECT_EQ(memory::live_bytes(), before + 1800);
    EXPECT_GE(host_usage().live_bytes, 1800U);
    EXPECT_GE(host_usage().peak_bytes, host_usage().live_bytes);
  }
  EXPECT_EQ(memory::live_bytes(), before);
}

TEST_F(Tracker, AnEarlierToolIsStillCalled) {
  const int before = foreign_calls();
  { const Bytes bytes("bytes", 10); }
  EXPECT_EQ(foreign_calls(), before + 1);
}

TEST_F(Tracker, ScopesNestAndEachHasItsPeak) {
  const memory::Scope outer;
  const Bytes base("base", 1000);
  {
    const memory::Scope inner;
    EXPECT_EQ(inner.base_bytes(), outer.base_bytes() + 1000);
    EXPECT_EQ(inner.peak_bytes(), 0U);
    { const Bytes large("large", 5000); }
    { const Bytes small("small", 300); }
    EXPECT_EQ(inner.peak_bytes(), 5000U);
  }
  const memory::Scope later;
  { const Bytes small("small", 200); }
  EXPECT_EQ(later.peak_bytes(), 200U);
  EXPECT_EQ(outer.peak_bytes(), 6000U);
}

TEST_F(Tracker, FreesOfOlderBlocksMakeRoomInAScope) {
  std::optional<Bytes> old(Bytes("old", 4000));
  const memory::Scope scope;
  old.reset();
  const Bytes fresh("fresh", 3000);
  EXPECT_EQ(scope.peak_bytes(), 0U);  // never above what was live at the beginning
  const Bytes more("more", 1600);
  EXPECT_EQ(scope.peak_bytes(), 600U);
}

TEST_F(Tracker, ScopesMayEndOutOfOrder) {
  auto first = std::make_unique<memory::Scope>();
  const memory::Scope second;
  first.reset();
  const Bytes bytes("bytes", 800);
  EXPECT_EQ(second.peak_bytes(), 800U);
}

TEST_F(Tracker, ReallocationCountsBothWhileItCopies) {
  const memory::Scope scope;
  Bytes bytes("bytes", 1000);
  Kokkos::resize(bytes, 2000);
  EXPECT_EQ(scope.peak_bytes(), 3000U);
  EXPECT_EQ(memory::live_bytes(), scope.base_bytes() + 2000);
}

/// An allocation that Kokkos reports in a space of this name; no such device is needed.
class Reported {
 public:
  Reported(const char* space, std::size_t bytes)
      : space_(Kokkos::Tools::make_space_handle(space)), bytes_(bytes) {
    const auto report = Kokkos::Tools::Experimental::get_callbacks().allocate_data;
    report(space_, "reported", address_.get(), bytes_);
  }
  ~Reported() {
    const auto report = Kokkos::Tools::Experimental::get_callbacks().deallocate_data;
    report(space_, "reported", address_.get(), bytes_);
  }
  Reported(const Reported&) = delete;
  Reported& operator=(const Reported&) = delete;

 private:
  Kokkos::Tools::SpaceHandle space_;
  std::size_t bytes_;
  std::unique_ptr<char> address_ = std::make_unique<char>();
};

TEST_F(Tracker, HostAndDeviceAreToldApart) {
  const memory::Bytes before = memory::live();
  const memory::Scope scope;
  {
    const Reported device("Cuda", 7000);
    const Reported managed("CudaUVM", 500);
    const Reported pinned("CudaHostPinned", 30);
    const Bytes host("host", 8);
    EXPECT_EQ(memory::live() - before, (memory::Bytes{.host = 38, .device = 7500}));
    EXPECT_EQ(memory::live_bytes(), before.total() + 7538);
  }
  EXPECT_EQ(memory::live(), before);
  EXPECT_EQ(scope.peak(), (memory::Bytes{.host = 38, .device = 7500}));
  const auto spaces = memory::usage();
  const auto cuda = std::ranges::find(spaces, "Cuda", &memory::SpaceUsage::space);
  ASSERT_NE(cuda, spaces.end());
  EXPECT_EQ(cuda->live_bytes, 0U);
  EXPECT_EQ(cuda->peak_bytes, 7000U);
}

TEST_F(Tracker, EachKindOfMemoryHasItsOwnPeak) {
  const Reported before("Cuda", 100);
  const memory::Scope scope;
  { const Bytes staging("on the host first", 3000); }
  const Reported result("Cuda", 2000);  // the two are never there at the same time
  EXPECT_EQ(scope.peak(), (memory::Bytes{.host = 3000, .device = 2000}));
  EXPECT_EQ(scope.peak_bytes(), 5000U) << "what the two memories must hold together";
  const memory::Scope later;
  EXPECT_EQ(later.base_bytes(), scope.base_bytes() + 2000);
  EXPECT_EQ(later.peak(), memory::Bytes{});
}

TEST_F(Tracker, ConcurrentAllocationsAddUp) {
  const std::size_t before = memory::live_bytes();
  const memory::Scope scope;
  constexpr int threads = 4;
  constexpr int rounds = 500;
  std::vector<std::jthread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([] {
      for (int i = 0; i < rounds; ++i) {
        void* first = Kokkos::kokkos_malloc<Kokkos::HostSpace>("first", 64);
        void* second = Kokkos::kokkos_malloc<Kokkos::HostSpace>("second", 36);
        Kokkos::kokkos_free<Kokkos::HostSpace>(first);
        Kokkos::kokkos_free<Kokkos::HostSpace>(second);
      }
    });
  }
  workers.clear();  // joins
  EXPECT_EQ(memory::live_bytes(), before);
  EXPECT_GE(scope.peak_bytes(), 100U);
  EXPECT_LE(scope.peak_bytes(), 4U * 100U);
}

TEST_F(Tracker, WhatIsAsideRaisesNoPeakButForWhatIsLeft) {
  const memory::Scope scope;
  Bytes left;
  {
    const memory::Aside aside;
    left = Bytes("left", 1000);
    const Bytes freed("freed", 100000);
    EXPECT_EQ(scope.peak_bytes(), 0U);
  }
  EXPECT_GE(scope.peak_bytes(), 1000U);
  EXPECT_LT(scope.peak_bytes(), 100000U);
  const Bytes counted("counted", 100000);
  EXPECT_GE(scope.peak_bytes(), 101000U);
}

}  // namespace
}  // namespace katt
