// The refusals of a build for architectures without wgmma (KATT_CUDA_ARCH).
#include <gtest/gtest.h>

#if defined(KATT_HAS_CUDA)

#include "core/devices.hpp"
#include "ops/attention/tensor_cores/mma_cuda.hpp"
#include "ops/attention/tensor_cores/wgmma_cuda.hpp"
#include "tests/ops/attention_case.hpp"
#include "tests/ops/attention_problems.hpp"

namespace katt::attention {
namespace {

// Tests are compiled like a build for other architectures, without the instructions of sm_90a; the
// library has no float here, so that what it is compiled for does not answer.
TEST(AttentionArchitectures, WgmmaIsRefusedByNameInABuildWithoutIt) {
  if (Kokkos::num_devices() < 1) GTEST_SKIP() << "skipped: no device";
  const auto data = make_problem({1, 1, 1, 64, 64, 64}, Dtype::bf16);
  const Status status =
      impl::wgmma_supports<float>(Kokkos::Cuda(), shape_args(*data), Tile{128, 128});
  EXPECT_EQ(status.code(), Status::Code::skipped);
  EXPECT_EQ(status.reason(), "needs a build for sm_90a (KATT_CUDA_ARCH)");
}

}  // namespace
}  // namespace katt::attention

#else

TEST(AttentionArchitectures, OfADevice) { GTEST_SKIP() << "skipped: no device in this build"; }

#endif
