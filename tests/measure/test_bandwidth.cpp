#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include "measure/bandwidth.hpp"
#include "memory/tracker.hpp"

namespace katt::bench {
namespace {

/// Copies as many floats as the workers move of some numbers of bytes.
template <class Exec>
void expect_every_float_moves() {
  const impl::Workers<Exec> workers(Exec(), 2);
  for (const std::size_t bytes : {1U, 40000U, 300001U}) {
    const auto count = static_cast<std::size_t>(workers.whole_floats(bytes));
    ASSERT_GT(count, 0U);
    const impl::Floats<Exec> source("source", count), target("target", count);
    const auto host = Kokkos::create_mirror_view(source);
    for (std::size_t i = 0; i < count; ++i) host(i) = static_cast<float>(i % 8191 + 1);
    Kokkos::deep_copy(source, host);
    workers.launch(impl::CopyKernel<Exec>{source, target, workers.count_for(count), 1}, "copy");
    workers.fence();
    const auto copied = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), target);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(copied(i), host(i)) << i << " of " << count;
  }
}

TEST(Bandwidth, MovesEveryFloat) {
  expect_every_float_moves<Host>();
#if defined(KATT_HAS_CUDA)
  if (Kokkos::num_devices() > 0) expect_every_float_moves<Kokkos::Cuda>();
#endif
}

TEST(Bandwidth, MovesAsManyBytesAsAreAskedFor) {
  memory::install();
  for (const char* traffic : {"read", "copy"}) {
    for (const double bytes : {1.0, 1e6, 1.5e7}) {
      double moved = 0;
      const std::size_t before = memory::live_bytes();
      const auto candidate = bandwidth_candidate(Backend::openmp, 2, traffic, bytes, moved);
      EXPECT_GE(static_cast<double>(memory::live_bytes() - before), moved);
      EXPECT_GT(moved, 0);
      if (bytes > 1) {
        EXPECT_LE(moved, bytes);
        EXPECT_GT(moved, 0.99 * bytes);
      }
      candidate->run();
      candidate->fence();
      EXPECT_TRUE(candidate->verify().status.is_ok());
    }
  }
}

}  // namespace
}  // namespace katt::bench
