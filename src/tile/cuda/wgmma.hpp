#pragma once

#include "core/dtype.hpp"
#include "tile/cuda/fragments.hpp"
#include "tile/cuda/mma_sync.hpp"
#include "tile/cuda/tensor_map.hpp"

#if defined(KATT_HAS_CUDA)

// The accumulators of wgmma as operands of an asm statement: 64 rows of N columns, N / 8 blocks.
#define KATT_BLOCK(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define KATT_BLOCKS_2(d, n) KATT_BLOCK(d, n), KATT_BLOCK(d, (n) + 1)
#define KATT_BLOCKS_4(d, n) KATT_BLOCKS_2(d, n), KATT_BLOCKS_2(d, (n) + 2)
#define KATT_BLOCKS_8(d, n) KATT_BLOCKS_4(d, n), KATT_BLOCKS_4(d, (n) + 4)
#define KATT_ACCUMULATORS_32(d) KATT_BLOCKS_4(d, 0)
#define KATT_ACCUMULATORS_64(d) KATT_BLOCKS_8(d, 0)
#define KATT_ACCUMULATORS_80(d) KATT_BLOCKS_8(d, 0), KATT_BLOCKS_2(d, 8)
#define KATT_ACCUMULATORS_96(d) KATT_BLOCKS_8(d, 0), KATT_BLOCKS_4(d, 8)
#define KATT_ACCUMULATORS_128(d) KATT_BLOCKS_8(d, 0), KATT_BLOCKS_8(d, 8)
#define KATT_ACCUMULATORS_176(d) \
  KATT_ACCUMULATORS_128(d), KATT_BLOCKS_4(d, 16), KATT_BLOCKS_2(d, 20)
#define KATT_ACCUMULATORS_192(d) KATT_ACCUMULATORS_128(d), KATT_BLOCKS_8(d, 16)
#define KATT_ACCUMULATORS_256(d) KATT_ACCUMULATORS_192(d), KATT_BLOCKS_8(d, 24)

// Their names in the text of the statement; they come first.
#define KATT_REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KATT_REGISTERS_64 \
  KATT_REGISTERS_32       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KATT_REGISTERS_80 \
  KATT_REGISTERS_64       \
  ", %32, %33, %34, %35, %36, %37, %38, %39"
#define KATT_REGISTERS_96 \
  KATT_REGISTERS_80       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define KATT_REGISTERS_128 \
  KATT_REGISTERS_96        \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KATT_REGISTERS_176                                                                  \
  KATT_REGISTERS_128                                                                        \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87"
#define KATT_REGISTERS_192 \
  KATT_REGISTERS_176       \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define KATT_REGISTERS_256                                                                   \
  KATT_REGISTERS_192                                                                         \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
  "%125, %126, %127"

// D = A·B or D += A·B with the accumulators d: 64 × N of `type`. `sources` is the rest of the
// instruction, the operands follow; `flag` is the number of the last one, whether to accumulate.
#define KATT_WGMMA(N, type, flag, sources, ...)                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #flag                            \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type \
               " {" KATT_REGISTERS_##N "}, " sources ";\n}"                          \
               : KATT_ACCUMULATORS_##N(d)                                            \
               : __VA_ARGS__, "r"(accumulate ? 1 : 0))
// With A in shared memory, and with A in registers; a0 … are the numbers of the operands.
#define KATT_WGMMA_SHARED(N, type, a0, b0, flag) \
  KATT_WGMMA(N, type, flag, "%" #a0 ", %" #b0 ", p, 1, 1, 0, 0", "l"(a), "l"(b))
#define KATT_WGMMA_REGISTERS(N, type, a0, a1, a2, a3, b0, flag)                               \
  KATT_WGMMA(N, type, flag, "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b0 ", p, 1, 1, 1", \
             "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// For either type, where N is the one that is asked for.
#define KATT_WGMMA_OF(N, operands, ...)              \
  if constexpr (columns == N) {                      \
    if constexpr (std::is_same_v<T, f16>) {          \
      KATT_WGMMA_##operands(N, "f16", __VA_ARGS__);  \
    } else {                                         \
      KATT_WGMMA_##operands(N, "bf16", __VA_ARGS__); \
    }                                                \
  }

namespace katt::tile {

/// A thread block with the matrix instructions of a warpgroup (wgmma, mbarrier, setmaxnreg: sm_90a
/// alone), as seen by one of its threads. Elsewhere its kernels do not run; the host refuses them.
class WgmmaBlock : public MmaBlock {
 public:
  /// Descriptors of swizzled tiles count on tiles at multiples of 1024 bytes: stop, rather than
  /// compute something else.
  __device__ explicit WgmmaBlock(std::byte* shared) : MmaBlock(shared) {
    if (shared_ % 1024 != 0) __trap();
  }

  /// A barrier of shared memory at byte `offset`: a phase ends with `count` arrivals. One thread
  /// calls it; a barrier() of the block must follow.
  __device__ void barrier_init(unsigned offset, int count) const {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_ + offset), "r"(count)
                 : "memory");
  }
  __device__ void barrier_arrive(unsigned offset) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_ + offset)
        : "memory");
#endif
  }
  /// Arrives at a barrier whose phase then ends no sooner than `bytes` more have come to it by
  /// load_box().
  __device__ void barrier_arrive_expecting(unsigned offset, unsigned bytes) const {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_ + offset),
                 "r"(bytes)
                 : "memory");
#endif
  }
  /// Begins to copy the box that begins at these elements to a stripe of shared memory, at a
  /// multiple of 1024 bytes, zeros where it leaves the tensor. Its bytes count for the barrier. One
  /// thread calls it.
  __device__ void load_box(unsigned target, const TensorMap& map, const int (&at)[5],
                           unsigned barrier) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_ + target),
        "l"(&map), "r"(shared_ + barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
        "r"(at[4])
        : "memory");
#endif
  }
  /// Returns once the phase of that parity (0, 1, 0, …) has ended.
  __device__ void barrier_wait(unsigned offset, unsigned parity) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_ + offset),
        "r"(parity)
        : "memory");
#endif
  }
  /// A barrier among `threads` threads of the block that name the same `id` (1 … 15).
  __device__ static void barrier_group(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
  }
  /// Arrives at such a barrier, for others to wait at.
  __device__ static void barrier_group_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
  }
  /// Makes this thread's writes to shared memory, barriers included, visible to wgmma and
  /// load_box().
  __device__ static void fence_async_proxy() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

  template <int Registers>
  __device__ static void increase_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
  }
  template <int Registers>
  __device__ static void decrease_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
  }

  /// Call it before the first wgmma that reads registers which the program has written.
  __device__ static void wgmma_fence() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }
  /// The wgmmas since the last wgmma_commit() are one group.
  __device__ static void wgmma_commit() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
  }
  /// Waits until at most `Pending` groups are in flight. hold() their results.
  template <int Pending>
  __device__ static void wgmma_wait() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#endif
  }
  /// Keeps the compiler from using results before this point, and from forgetting operands.
  template <int N>
  __device__ static void hold(float (&d)[N][4]) {
    KATT_UNROLL for (int n = 0; n < N; ++n) { asm volatile("" : KATT_BLOCK(d, n)::"memory"); }
  }

  template <int N>
  __device__ static void hold(std::uint32_t (&a)[N][4]) {
    KATT_UNROLL for (int n = 0; n < N; ++n) {
      asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
    }
  }

  /// The 64-bit descriptor of an operand of this block: its address counts from the beginning of
  /// the multiprocessor's shared memory.
  __device__ std::uint64_t operand(std::uint64_t descriptor) const {
    return descriptor + (shared_ >> 4);
  }

  /// Begins D = A·B (accumulate: D += A·B) for a warpgroup: A 64 × 16 and B 16 × N, both with the
  /// inner dimension along the rows of their tiles, D in f32, sixteen rows a warp.
  template <class T, int N>
  __device__ void wgmma(float (&d)[N / 8][4], std::uint64_t tile_a, std::uint64_t tile_b,
                        bool accumulate) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const std::uint64_t a = operand(tile_a);
    const std::uint64_t b = operand(tile_b);
    constexpr int columns = N;
    static_assert(wgmma_takes(N));
    KATT_WGMMA_OF(32, SHARED, 16, 17, 18)
    KATT_WGMMA_OF(64, SHARED, 32, 33, 34)
    KATT_WGMMA_OF(80, SHARED, 40, 41, 42)
    KATT_WGMMA_OF(96, SHARED, 48, 49, 50)
    KATT_WGMMA_OF(128, SHARED, 64, 65, 66)
    KATT_WGMMA_OF(176, SHARED, 88, 89, 90)
    KATT_WGMMA_OF(192, SHARED, 96, 97, 98)
    KATT_WGMMA_OF(256, SHARED, 128, 129, 130)
#else
    unsupported();
#endif
  }

  /// The same with A in registers, and B with the inner dimension across the rows of its tile. The
  /// accumulators are blocks `First` … First + N / 8 of d.
  template <class T, int N, int First, int Blocks>
  __device__ void wgmma(float (&all)[Blocks][4], const std::uint32_t (&a)[4], std::uint64_t tile_b,
                        bool accumulate) const {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    float(*const d)[4] = all + First;
    const std::uint64_t b = operand(tile_b);
    constexpr int columns = N;
    static_assert(wgmma_takes(N));
    KATT_WGMMA_OF(32, REGISTERS, 16, 17, 18, 19, 20, 21)
    KATT_WGMMA_OF(64, REGISTERS, 32, 33, 34, 35, 36, 37)
    KATT_WGMMA_OF(80, REGISTERS, 40, 41, 42, 43, 44, 45)
    KATT_WGMMA_OF(96, REGISTERS, 48, 49, 50, 51, 52, 53)
    KATT_WGMMA_OF(128, REGISTERS, 64, 65, 66, 67, 68, 69)
    KATT_WGMMA_OF(176, REGISTERS, 88, 89, 90, 91, 92, 93)
    KATT_WGMMA_OF(192, REGISTERS, 96, 97, 98, 99, 100, 101)
    KATT_WGMMA_OF(256, REGISTERS, 128, 129, 130, 131, 132, 133)
#else
    unsupported();
#endif
  }
};

}  // namespace katt::tile

#undef KATT_WGMMA_OF
#undef KATT_WGMMA_REGISTERS
#undef KATT_WGMMA_SHARED
#undef KATT_WGMMA

#endif
