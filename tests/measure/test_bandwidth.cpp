#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include "measure/bandwidth.hpp"

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

}  // namespace
}  // namespace katt::bench
