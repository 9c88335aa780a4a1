#undef NDEBUG  // for the kernel that asserts
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

// What kernels for Hopper use, compiled by nvcc: TMA, wgmma, stmatrix, bulk copies; and their
// mistakes, which the device in software must see.

namespace {

using bf16 = __nv_bfloat16;
__device__ unsigned at(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ void mbarrier_init(uint64_t* b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(b)), "r"(n));
}
__device__ void expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(b)), "r"(bytes)
               : "memory");
}
__device__ void wait(uint64_t* b, int parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done; "
      "bra again; done: }" ::"r"(at(b)),
      "r"(parity)
      : "memory");
}
__device__ void load(void* to, const CUtensorMap* map, uint64_t* b, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(at(to)),
      "l"(map), "r"(at(b)), "r"(x), "r"(y)
      : "memory");
}
__device__ uint64_t descriptor(const void* p) {
  return (at(p) & 0x3FFFF) >> 4 | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}

enum Mistake { none, no_wait, no_read_wait, no_proxy_fence, early_accumulator };

/// C (m × n) = A (m × k) · B (n × k)ᵀ; tiles of 64 × 64, a pipeline of two stages, one loading
/// thread; C goes out through stmatrix and TMA.
template <Mistake mistake>
__global__ void __launch_bounds__(128)
    product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
            const __grid_constant__ CUtensorMap c, int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  bf16* const a_tile = reinterpret_cast<bf16*>(memory);
  bf16* const b_tile = a_tile + 2 * 4096;
  bf16* const c_tile = b_tile + 2 * 4096;
  __shared__ uint64_t full[2];
  const int row = 64 * blockIdx.y, column = 64 * blockIdx.x, tiles = (k + 63) / 64, t = threadIdx.x;
  if (t == 0) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&a));
    mbarrier_init(&full[0], 1);
    mbarrier_init(&full[1], 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  const auto fetch = [&](int tile) {
    if (t != 0) return;
    const int s = tile % 2;
    expect(&full[s], 16384);
    load(a_tile + 4096 * s, &a, &full[s], 64 * tile, row);
    load(b_tile + 4096 * s, &b, &full[s], 64 * tile, column);
  };
  float d[32];
  fetch(0);
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) fetch(tile + 1);
    if (mistake != no_wait) wait(&full[tile % 2], tile / 2 % 2);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int kk = 0; kk < 4; ++kk) {
      const uint64_t da = descriptor(a_tile + 4096 * (tile % 2)) + 2 * kk,
                     db = descriptor(b_tile + 4096 * (tile % 2)) + 2 * kk;
#define R8(n)                                                                                 \
  "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), "+f"(d[n + 4]), "+f"(d[n + 5]), \
      "+f"(d[n + 6]), "+f"(d[n + 7])
      asm volatile(
          "{ .reg .pred p; setp.ne.b32 p, %34, 0; "
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
          "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%"
          "24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0; }"
          : R8(0), R8(8), R8(16), R8(24)
          : "l"(da), "l"(db), "r"(tile + kk)
          : "memory");
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (mistake == early_accumulator) d[0] += 1.0f;
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    __syncthreads();
  }
  // Row 16 w + l % 16 of the tile, chunk by chunk of 8 columns; 128-byte swizzle.
  const int w = t / 32, l = t % 32;
  for (int j = 0; j < 8; j += 2) {
    unsigned r[4];
    for (int n = 0; n < 4; ++n)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
          : "=r"(r[n])
          : "f"(d[4 * (j + n / 2) + 2 * (n % 2) + 1]), "f"(d[4 * (j + n / 2) + 2 * (n % 2)]));
    const int line = 16 * w + l % 16, chunk = j + l / 16;
    const unsigned to = at(c_tile) + line * 128 + ((chunk ^ line % 8) * 16);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
  }
  if (mistake != no_proxy_fence) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (w == 0) {
    unsigned leader, elected;
    asm volatile("{ .reg .pred p; elect.sync %0|p, -1; selp.b32 %1, 1, 0, p; }"
                 : "=r"(leader), "=r"(elected));
    if (elected) {
      asm volatile(
          "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&c),
          "r"(at(c_tile)), "r"(column), "r"(row)
          : "memory");
      asm volatile(
          "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], "
          "[%1];" ::"l"(&c),
          "r"(at(c_tile)), "r"(column), "r"(row)
          : "memory");
      asm volatile("cp.async.bulk.commit_group;");
      if (mistake != no_read_wait) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
  }
}

/// Plain bulk copies there and back, with doubled values, and cp.async with an mbarrier.
__global__ void __cluster_dims__(1, 1, 1) bulk(const float* in, float* out, float* sums) {
  __shared__ __align__(128) float values[256], more[32];
  __shared__ uint64_t full, copied;
  unsigned rank, remote;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) mbarrier_init(&full, 1), mbarrier_init(&copied, 32);
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at(&full)), "r"(rank));
  if (threadIdx.x == 0) {
    expect(&full, 1024);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, "
        "[%2];" ::"r"(at(values)),
        "l"(in), "r"(remote)
        : "memory");
  }
  if (threadIdx.x < 32) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at(more + threadIdx.x)),
                 "l"(in + threadIdx.x)
                 : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at(&copied))
                 : "memory");
  }
  wait(&full, 0);
  wait(&copied, 0);
  values[threadIdx.x] = 2 * values[threadIdx.x] + more[threadIdx.x % 32];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out),
                 "r"(at(values))
                 : "memory");
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 1024;" ::"l"(sums),
        "r"(at(values))
        : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

__global__ void racy(float* out, bool good) {
  __shared__ float values[64];
  values[threadIdx.x] = threadIdx.x;
  if (good) __syncthreads();
  out[threadIdx.x] = values[63 - threadIdx.x];
}
__global__ void asserting(int n) {
  if (threadIdx.x == 3)
    printf("thread %d says %s %.2f %lld%%\n", threadIdx.x, "hello", 1.5, 1234567890123ll);
  assert(n == 3);
}

constexpr int rows = 120, columns = 72, depth = 200;  // nothing is a multiple of 64

std::vector<bf16> random_matrix(int size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bf16> matrix(static_cast<std::size_t>(size));
  for (auto& x : matrix) {
    x = __float2bfloat16(std::uniform_real_distribution<float>(-0.5F, 0.5F)(random));
  }
  return matrix;
}

/// A matrix on the device, with a map of tiles of 64 × 64.
struct DeviceMatrix {
  explicit DeviceMatrix(const std::vector<bf16>& values, int rows, int columns) {
    EXPECT_EQ(cudaMalloc(&data, values.size() * 2), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data, values.data(), values.size() * 2, cudaMemcpyDefault), cudaSuccess);
    using Encode = decltype(&cuTensorMapEncodeTiled);
    void* encode = nullptr;
    cudaDriverEntryPointQueryResult result;
    EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                               cudaEnableDefault, &result),
              cudaSuccess);
    const cuuint64_t dims[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns) * 2};
    const cuuint32_t box[] = {64, 64}, ones[] = {1, 1};
    EXPECT_EQ(reinterpret_cast<Encode>(encode)(
                  &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, dims, strides, box, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              CUDA_SUCCESS);
  }
  DeviceMatrix(const DeviceMatrix&) = delete;
  ~DeviceMatrix() { cudaFree(data); }

  bf16* data = nullptr;
  CUtensorMap map;
};

/// The largest relative error of 2 A·Bᵀ; infinite where C has a NaN.
double worst_error(const std::vector<bf16>& a, const std::vector<bf16>& b,
                   const std::vector<bf16>& c) {
  double worst = 0;
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      double sum = 0;
      for (int x = 0; x < depth; ++x) {
        sum += static_cast<double>(__bfloat162float(a[i * depth + x])) *
               __bfloat162float(b[j * depth + x]);
      }
      const double got = __bfloat162float(c[i * columns + j]);
      const double error = std::abs(got - 2 * sum) / (std::abs(sum) + 1);
      worst = std::isnan(got) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

class Hopper : public ::testing::Test {
 protected:
  void TearDown() override { cudaDeviceReset(); }

  /// Waits for the device; what it reports on stderr in the meantime goes to report_.
  cudaError_t synchronize() {
    ::testing::internal::CaptureStderr();
    const cudaError_t error = cudaDeviceSynchronize();
    report_ = ::testing::internal::GetCapturedStderr();
    return error;
  }

  /// The kernel's error; where it has none, the product goes to worst_.
  template <Mistake mistake>
  cudaError_t run_product() {
    const auto a = random_matrix(rows * depth, 1), b = random_matrix(columns * depth, 2);
    std::vector<bf16> c(rows * columns);
    const DeviceMatrix da(a, rows, depth), db(b, columns, depth), dc(c, rows, columns);
    constexpr std::size_t shared = 5 * 8192;
    EXPECT_EQ(
        cudaFuncSetAttribute(product<mistake>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        cudaSuccess);
    product<mistake><<<dim3((columns + 63) / 64, (rows + 63) / 64), 128, shared>>>(da.map, db.map,
                                                                                   dc.map, depth);
    const cudaError_t error = synchronize();
    if (error == cudaSuccess) {
      EXPECT_EQ(cudaMemcpy(c.data(), dc.data, c.size() * 2, cudaMemcpyDefault), cudaSuccess);
      worst_ = worst_error(a, b, c);
    }
    return error;
  }

  void expect_fault(cudaError_t error, const std::string& words) {
    EXPECT_NE(error, cudaSuccess);
    EXPECT_NE(report_.find(words), std::string::npos) << report_;
  }

  std::string report_;
  double worst_ = INFINITY;
};

TEST_F(Hopper, MultipliesThroughTmaWgmmaAndStmatrix) {
  ASSERT_EQ(run_product<none>(), cudaSuccess) << report_;
  EXPECT_LT(worst_, 0.01);
}

TEST_F(Hopper, SeesAMissingWaitForATile) {
  if (run_product<no_wait>() == cudaSuccess) EXPECT_GT(worst_, 0.01);
}

TEST_F(Hopper, SeesAMissingWaitBeforeTheBlockEnds) {
  expect_fault(run_product<no_read_wait>(), "the thread ends before");
}

TEST_F(Hopper, SeesAMissingProxyFence) {
  expect_fault(run_product<no_proxy_fence>(), "fence.proxy.async");
}

// A fault or, when nvcc gives the sum another register, a NaN.
TEST_F(Hopper, SeesAnAccumulatorThatIsUsedTooEarly) {
  if (run_product<early_accumulator>() == cudaSuccess) EXPECT_GT(worst_, 0.01);
}

TEST_F(Hopper, CopiesInBulkAndBehindAnMbarrier) {
  float *in, *out, *sums;
  for (float** p : {&in, &out, &sums}) ASSERT_EQ(cudaMallocManaged(p, 1024), cudaSuccess);
  for (int i = 0; i < 256; ++i) {
    in[i] = static_cast<float>(i);
    sums[i] = 1;
  }
  bulk<<<1, 256>>>(in, out, sums);
  ASSERT_EQ(synchronize(), cudaSuccess) << report_;
  for (int i = 0; i < 256; ++i) {
    ASSERT_EQ(out[i], 2 * i + i % 32) << i;
    ASSERT_EQ(sums[i], out[i] + 1) << i;
  }
  for (float* p : {in, out, sums}) cudaFree(p);
}

TEST_F(Hopper, SeesARaceOnSharedMemory) {
  float* out;
  ASSERT_EQ(cudaMalloc(&out, 256), cudaSuccess);
  setenv("SOFTCUDA_RACECHECK", "1", 1);
  racy<<<1, 64>>>(out, true);
  EXPECT_EQ(synchronize(), cudaSuccess) << report_;
  racy<<<1, 64>>>(out, false);
  expect_fault(synchronize(), "race on shared memory");
  unsetenv("SOFTCUDA_RACECHECK");
  cudaDeviceReset();
  cudaFree(out);
}

TEST_F(Hopper, PrintsAndFailsAssertions) {
  ::testing::internal::CaptureStdout();
  asserting<<<1, 32>>>(3);
  ASSERT_EQ(synchronize(), cudaSuccess) << report_;
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "thread 3 says hello 1.50 1234567890123%\n");
  asserting<<<1, 32>>>(4);
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(synchronize(), cudaErrorAssert);
  ::testing::internal::GetCapturedStdout();
  EXPECT_NE(report_.find("assertion `n == 3' failed"), std::string::npos) << report_;
}

}  // namespace
