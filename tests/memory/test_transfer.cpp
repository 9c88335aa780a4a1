#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "core/device_instances.hpp"
#include "core/devices.hpp"
#include "core/dtype.hpp"
#include "memory/pool.hpp"
#include "memory/tracker.hpp"
#include "memory/transfer.hpp"
#include "nn/device_memory.hpp"
#include "tests/message_of.hpp"

namespace katt::memory {
namespace {

using Exec = Kokkos::DefaultHostExecutionSpace;
using InPlace = Transfer<Exec>;
using Staged = Transfer<Exec, true>;  // the way to a device, with the host as the device

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i * 7 + i / 251);
  return values;
}

template <class Way>
class Transfers : public ::testing::Test {};

using Ways = ::testing::Types<InPlace, Staged>;
TYPED_TEST_SUITE(Transfers, Ways);

TYPED_TEST(Transfers, BytesArriveThereAndBack) {
  TypeParam transfer(Exec(), 128);
  for (const std::size_t bytes : {0, 1, 63, 127, 128, 129, 256, 257, 384, 1021}) {
    const std::vector<std::byte> source = pattern(bytes);
    std::vector<std::byte> there(bytes + 1, std::byte{0xEE});
    transfer.upload(there.data(), source);
    transfer.wait();
    EXPECT_TRUE(std::equal(source.begin(), source.end(), there.begin())) << bytes;
    EXPECT_EQ(there.back(), std::byte{0xEE}) << bytes;
    std::vector<std::byte> back(bytes);
    transfer.download(there.data(), back);
    EXPECT_EQ(back, source) << bytes;
  }
}

TYPED_TEST(Transfers, TheSourceMayChangeOnceUploadReturns) {
  TypeParam transfer(Exec(), 64);
  std::vector<std::byte> there(1000);
  std::vector<std::byte> source = pattern(1000);
  const std::vector<std::byte> expected = source;
  transfer.upload(there.data(), source);
  std::fill(source.begin(), source.end(), std::byte{0});
  transfer.wait();
  EXPECT_EQ(there, expected);
}

TYPED_TEST(Transfers, AnUploadArrivesBeforeTheNextDownload) {
  TypeParam transfer(Exec(), 64);
  std::vector<std::byte> there(777);
  const std::vector<std::byte> source = pattern(777);
  std::vector<std::byte> back(777);
  transfer.upload(there.data(), source);
  transfer.download(there.data(), back);
  EXPECT_EQ(back, source);
}

TYPED_TEST(Transfers, ElementsAreConvertedOnTheWay) {
  std::vector<float> values(301);
  std::iota(values.begin(), values.end(), -150.0F);  // exact in every dtype
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    TypeParam transfer(Exec(), 192);
    std::vector<std::byte> there(values.size() * size_of(dtype));
    std::vector<float> back(values.size());
    nn::write_elements(transfer, values, dtype, there.data());
    nn::read_elements(transfer, there.data(), dtype, back);
    EXPECT_EQ(back, values) << name_of(dtype);
  }
}

RC_GTEST_PROP(StagedTransfer, AnyChunkAndAnySize, ()) {
  const auto chunk = *rc::gen::inRange<std::size_t>(0, 700);
  const auto bytes = *rc::gen::inRange<std::size_t>(0, 5000);
  Staged transfer(Exec(), chunk);
  const std::vector<std::byte> source = pattern(bytes);
  std::vector<std::byte> there(bytes);
  std::vector<std::byte> back(bytes);
  std::size_t next = 0;
  transfer.upload(there.data(), bytes, [&](std::size_t offset, std::span<std::byte> to) {
    RC_ASSERT(offset == next);
    RC_ASSERT(offset % Staged::alignment == 0);
    std::memcpy(to.data(), source.data() + offset, to.size());
    next += to.size();
  });
  RC_ASSERT(next == bytes);
  next = 0;
  transfer.download(there.data(), bytes, [&](std::size_t offset, std::span<const std::byte> from) {
    RC_ASSERT(offset == next);
    std::memcpy(back.data() + offset, from.data(), from.size());
    next += from.size();
  });
  RC_ASSERT(next == bytes);
  RC_ASSERT(back == source);
}

TEST(StagedTransfer, HoldsTwoChunksAndOnlyWhenNeeded) {
  install();
  const std::size_t before = live_bytes();
  {
    Staged transfer(Exec(), 1000);  // 1024 when rounded up
    transfer.upload(nullptr, std::span<const std::byte>());
    EXPECT_EQ(live_bytes(), before);
    std::vector<std::byte> there(10);
    transfer.upload(there.data(), pattern(10));
    EXPECT_EQ(live_bytes(), before + 2 * 1024);
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST(InPlaceTransfer, HoldsNothing) {
  install();
  const std::size_t before = live_bytes();
  InPlace transfer(Exec{});
  std::vector<std::byte> there(100);
  transfer.upload(there.data(), pattern(100));
  EXPECT_EQ(live_bytes(), before);
}

#if defined(KATT_HAS_CUDA)
TEST(CudaTransfer, BytesArriveThereAndBack) {
  if (Kokkos::num_devices() < 1) GTEST_SKIP() << "skipped: no device";
  Transfer<Kokkos::Cuda> transfer(Kokkos::Cuda(), 1 << 16);
  const std::vector<std::byte> source = pattern(1'000'003);
  const Kokkos::View<std::byte*, Kokkos::CudaSpace> there("katt::test::there", source.size());
  std::vector<std::byte> back(source.size());
  transfer.upload(there.data(), source);
  transfer.download(there.data(), back);
  EXPECT_EQ(back, source);
}
#endif

#if defined(KATT_HAS_CUDA)
/// Needs two devices; the device in software has them with SOFTCUDA_DEVICES=2, which
/// tests/CMakeLists.txt asks for.
class SeveralDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (devices::count() < 2) GTEST_SKIP() << "skipped: one device, expected two";
    install();
  }
};

using OnDevice = Kokkos::View<std::byte*, Kokkos::CudaSpace>;

OnDevice allocate_on(const Kokkos::Cuda& exec, std::size_t bytes) {
  return OnDevice(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "katt::test::there"),
                  bytes);
}

TEST_F(SeveralDevices, AnInstanceWorksOnItsDevice) {
  for (const int device : {0, 1}) {
    const Kokkos::Cuda exec = instance_on(device);
    EXPECT_EQ(device_of(exec), device);
    const OnDevice there = allocate_on(exec, 1000);
    EXPECT_EQ(devices::of_memory(there.data()), device);
    EXPECT_GT(devices::memory(device).total, 0U);
    EXPECT_FALSE(devices::name(device).empty());
  }
  EXPECT_THROW((void)instance_on(devices::count()), InputError);
  EXPECT_EQ(devices::of_memory(this), -1);
}

TEST_F(SeveralDevices, ATransferServesTheDeviceOfItsInstance) {
  const std::vector<std::byte> source = pattern(300'001);
  for (const int device : {1, 0}) {
    const Kokkos::Cuda exec = instance_on(device);
    const OnDevice there = allocate_on(exec, source.size());
    Transfer<Kokkos::Cuda> transfer(exec, 1 << 16);
    std::vector<std::byte> back(source.size());
    transfer.upload(there.data(), source);
    transfer.download(there.data(), back);
    EXPECT_EQ(back, source) << device;
  }
}

TEST_F(SeveralDevices, ACopyFollowsTheSourceAndTheTargetFollowsIt) {
  const Kokkos::Cuda one = instance_on(0);
  const Kokkos::Cuda two = instance_on(1);
  constexpr std::size_t bytes = 100'003;
  const OnDevice from = allocate_on(one, bytes);
  const OnDevice to = allocate_on(two, bytes);
  Kokkos::deep_copy(two, to, std::byte{9});
  Kokkos::deep_copy(one, from, std::byte{1});
  copy(one, from.data(), two, to.data(), bytes);
  Kokkos::deep_copy(one, from, std::byte{2});  // waits until the copy has read it
  copy(two, to.data(), one, from.data(), bytes / 2);
  std::vector<std::byte> back(bytes);
  Transfer<Kokkos::Cuda>(one).download(from.data(), back);
  std::vector<std::byte> expected(bytes, std::byte{2});
  std::fill_n(expected.begin(), bytes / 2, std::byte{1});
  EXPECT_EQ(back, expected);
  Transfer<Kokkos::Cuda>(two).download(to.data(), back);
  EXPECT_EQ(back, std::vector<std::byte>(bytes, std::byte{1}));
}

TEST_F(SeveralDevices, EachHasItsPoolAndItsLimit) {
  using Pool = MemoryPool<Kokkos::CudaSpace>;
  const Kokkos::Cuda one = instance_on(0);
  const Kokkos::Cuda two = instance_on(1);
  Pool first(one, "katt::test::first", 4096);
  Pool second(two, "katt::test::second", 8192);
  const PoolBlock large = second.allocate(two, 6000);
  EXPECT_EQ(devices::of_memory(large.data()), 1);
  EXPECT_THROW((void)first.allocate(one, 6000), LimitError);
  const PoolBlock small = first.allocate(one, 4000);
  EXPECT_EQ(devices::of_memory(small.data()), 0);
  EXPECT_EQ(first.statistics().live_bytes, 4000U);
  EXPECT_EQ(second.statistics().live_bytes, 6000U);
  EXPECT_EQ(test::message_of<std::invalid_argument>([&] { (void)second.allocate(one, 1); }),
            "katt::test::second: a block for device 0 was asked for, the pool is of device 1");
}

TEST_F(SeveralDevices, TheTrackerTellsThemApart) {
  const Kokkos::Cuda one = instance_on(0);
  const Kokkos::Cuda two = instance_on(1);
  const auto on_second = [] {
    const auto spaces = usage();
    const auto found = std::ranges::find_if(
        spaces, [](const SpaceUsage& one) { return one.space == "Cuda" && one.device == 1; });
    return found == spaces.end() ? std::size_t{0} : found->live_bytes;
  };
  const std::size_t before = on_second();
  const Scope scope;
  {
    const OnDevice a = allocate_on(one, 1000);
    const OnDevice b = allocate_on(two, 3000);
    EXPECT_EQ(on_second(), before + 3000);
  }
  const OnDevice c = allocate_on(one, 500);
  EXPECT_EQ(on_second(), before);
  EXPECT_EQ(scope.peak().device, 4000U) << "neither can lend the other memory";
  std::size_t seen = 0;
  for (const SpaceUsage& space : usage()) seen += space.space == "Cuda" && space.device >= 0;
  EXPECT_EQ(seen, 2U);
}
#endif

TEST(Copy, OnAHostIsACopy) {
  const std::vector<std::byte> source = pattern(1021);
  std::vector<std::byte> there(1021);
  copy(Exec(), source.data(), Exec(), there.data(), source.size());
  EXPECT_EQ(there, source);
  copy(Exec(), nullptr, Exec(), nullptr, 0);
}

TEST(Devices, ABuildRunsOnItsArchitecturesAndWhatTheyAreCompatibleWith) {
  EXPECT_TRUE(devices::runs_on("90a", 90));
  EXPECT_FALSE(devices::runs_on("90a", 80));
  EXPECT_FALSE(devices::runs_on("90a", 120)) << "instructions of 9.0 alone";
  EXPECT_TRUE(devices::runs_on("80", 86));
  EXPECT_TRUE(devices::runs_on("80", 120)) << "by its PTX";
  EXPECT_TRUE(devices::runs_on("80 90a", 120));
  EXPECT_TRUE(devices::runs_on("80 90a", 90));
  EXPECT_FALSE(devices::runs_on("80 90a", 75));
  EXPECT_TRUE(devices::runs_on("100f", 103));
  EXPECT_FALSE(devices::runs_on("100f", 120));
}

TEST(Devices, AreNotOnTheHost) {
  const int beyond = devices::count();
  EXPECT_THROW((void)devices::name(beyond), InputError);
  EXPECT_THROW((void)devices::memory(-1), InputError);
  EXPECT_THROW(devices::choose(beyond), InputError);
  std::byte on_host{};
  EXPECT_EQ(devices::of_memory(&on_host), -1);
  EXPECT_EQ(device_of(Exec()), -1);
}

}  // namespace
}  // namespace katt::memory
