#include <gtest/gtest.h>

#include <array>
#include <string>

#include "core/views.hpp"
#include "tests/message_of.hpp"

namespace katt {
namespace {

using Host = Kokkos::HostSpace;

TEST(TensorRef, ADenseViewKeepsShapeAndStrides) {
  const Kokkos::View<float****, Kokkos::LayoutRight, Host> view("q", 2, 3, 5, 8);
  const TensorRef<4> ref = view;
  EXPECT_EQ(ref.data, view.data());
  EXPECT_EQ(ref.dtype, Dtype::f32);
  EXPECT_EQ(ref.extent, (std::array<std::int64_t, 4>{2, 3, 5, 8}));
  EXPECT_EQ(ref.stride, (std::array<std::int64_t, 4>{120, 40, 8, 1}));
  EXPECT_EQ(ref.size(), 240);
  EXPECT_TRUE(static_cast<bool>(ref));
  EXPECT_FALSE(static_cast<bool>(TensorRef<4>()));
}

TEST(TensorRef, AViewOfAnotherDtypeIsRefused) {
  const Kokkos::View<bf16**, Kokkos::LayoutRight, Host> stored("x", 2, 3);
  const ConstTensorRef<2> ref = TensorRef<2>(stored);
  EXPECT_EQ((ref.view<bf16, Host>().extent(1)), 3U);
  EXPECT_THROW((void)(ref.view<float, Host>()), InputError);
  EXPECT_THROW((void)(ref.view<f16, Host>()), InputError);
  EXPECT_EQ((ConstTensorRef<2>().view<bf16, Host>().extent(0)),
            0U);  // an absent tensor has no dtype
}

TEST(TensorRef, BothStorageOrdersAreSeenInLogicalOrder) {
  // stored (batch, seq, head, dim), seen (batch, head, seq, dim)
  const Kokkos::View<f16****, Kokkos::LayoutRight, Host> stored("k", 2, 5, 3, 8);
  const Kokkos::LayoutStride logical(2, 120, 3, 8, 5, 24, 8, 1);
  const Kokkos::View<f16****, Kokkos::LayoutStride, Host> seen(stored.data(), logical);
  const TensorRef<4> ref = seen;
  EXPECT_EQ(ref.dtype, Dtype::f16);
  EXPECT_EQ(ref.extent, (std::array<std::int64_t, 4>{2, 3, 5, 8}));
  const auto again = ref.view<f16, Host>();
  for (std::size_t b = 0; b < 2; ++b) {
    for (std::size_t h = 0; h < 3; ++h) {
      for (std::size_t s = 0; s < 5; ++s) {
        EXPECT_EQ(&again(b, h, s, 7), &stored(b, s, h, 7));
      }
    }
  }
}

TEST(TensorRef, AStridedLastAxisIsRefused) {
  const Kokkos::View<float**, Kokkos::LayoutLeft, Host> columns("x", 4, 3);
  EXPECT_EQ(test::message_of([&] { return TensorRef<2>(columns); }),
            "tensor x: its last axis has stride 4, expected 1");
  // one element has no stride that could matter
  const Kokkos::View<float**, Kokkos::LayoutLeft, Host> thin("y", 4, 1);
  EXPECT_NO_THROW(TensorRef<2>{thin});
}

TEST(TensorRef, ConstIsKept) {
  const Kokkos::View<bf16*, Host> view("v", 6);
  const Kokkos::View<const bf16*, Host> constant = view;
  const ConstTensorRef<1> from_const = constant;
  const ConstTensorRef<1> from_ref = TensorRef<1>(view);
  EXPECT_EQ(from_const.data, from_ref.data);
  EXPECT_EQ(from_const.dtype, Dtype::bf16);
  EXPECT_EQ(from_const.stride, from_ref.stride);
  using Element = decltype(from_const.view<bf16, Host>())::value_type;
  EXPECT_TRUE((std::is_same_v<Element, const bf16>));
  EXPECT_FALSE((std::is_constructible_v<TensorRef<1>, ConstTensorRef<1>>));
}

TEST(TensorRef, APointerIsDenseRowMajor) {
  std::array<float, 24> data{};
  const TensorRef<3> ref(data.data(), Dtype::f32, {2, 3, 4});
  EXPECT_EQ(ref.stride, (std::array<std::int64_t, 3>{12, 4, 1}));
  ref.view<float, Host>()(1, 2, 3) = 5.0F;
  EXPECT_EQ(data[23], 5.0F);
}

TEST(TensorRef, SizesBeyond32BitsAreExact) {
  const TensorRef<4> ref(nullptr, Dtype::bf16, {64, 128, 131072, 256});
  EXPECT_EQ(ref.size(), std::int64_t{1} << 38);
  EXPECT_EQ(ref.stride[0], std::int64_t{1} << 32);
}

TEST(Workspace, FromAView) {
  const Kokkos::View<std::byte*, Host> bytes("w", 4096);
  const Workspace workspace = bytes;
  EXPECT_EQ(workspace.data, bytes.data());
  EXPECT_EQ(workspace.bytes, 4096U);
  EXPECT_EQ(Workspace().bytes, 0U);
}

}  // namespace
}  // namespace katt
