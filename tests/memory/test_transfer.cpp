#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "core/dtype.hpp"
#include "memory/tracker.hpp"
#include "memory/transfer.hpp"
#include "nn/device_memory.hpp"

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

}  // namespace
}  // namespace katt::memory
