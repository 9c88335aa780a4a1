#pragma once

#include <algorithm>

#include "core/dtype.hpp"
#include "tile/cuda/fragments.hpp"
#include "tile/cuda/narrow.hpp"

#if defined(KATT_HAS_CUDA)

#if __CUDA_ARCH__ >= 800
#define KATT_LDMATRIX(transposed)                                                               \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" transposed ".shared.b16 {%0, %1, %2, %3}, [%4];" \
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3]) \
               : "r"(shared_ + offset)                                                          \
               : "memory")
#else
#define KATT_LDMATRIX(transposed) unsupported()
#endif

namespace katt::tile {

/// True when every architecture of this compilation has these instructions. nvcc defines it, so a
/// program with score rules of its own need not.
#if defined(__CUDA_ARCH_LIST__)
constexpr bool has_mma_sync = std::min({__CUDA_ARCH_LIST__}) >= 800;
#else
constexpr bool has_mma_sync = false;
#endif

/// A thread block with warp-wide matrix instructions (mma.sync, ldmatrix, cp.async: sm_80 and
/// later), as seen by one of its threads. A kernel that uses nothing else of the machine also runs
/// on the host, under the emulator of the tests (tests/tile/warp_emulator.hpp), which has the same
/// members.
///
/// Shared memory is addressed by bytes from its beginning.
class MmaBlock {
 public:
  __device__ explicit MmaBlock(std::byte* shared)
      : shared_(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))) {}

  __device__ unsigned thread() const { return threadIdx.x; }
  __device__ void barrier() const { __syncthreads(); }
  /// The same; returns true when any thread passes true.
  __device__ bool barrier_any(bool value) const { return __syncthreads_or(value ? 1 : 0) != 0; }
  __device__ void sync_warp() const { __syncwarp(); }

  /// The value, a float or an integer, of the lane whose number differs by the bits of `mask`.
  template <class Word>
  __device__ Word shuffle_xor(Word value, int mask) const {
    return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
  }

  /// Orders this thread's accesses to global memory before those that follow, for all blocks.
  __device__ static void fence_device() { __threadfence(); }
  /// Atomic operations on global memory; they return what it held.
  __device__ static std::uint64_t atomic_load(const std::uint64_t* word) {
    std::uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ static std::uint64_t atomic_add(std::uint64_t* word, std::uint64_t value) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(word), value);
  }
  __device__ static std::uint64_t atomic_exchange(std::uint64_t* word, std::uint64_t value) {
    return atomicExch(reinterpret_cast<unsigned long long*>(word), value);
  }
  /// Writes `value` where the word holds `expected`.
  __device__ static std::uint64_t atomic_replace(std::uint64_t* word, std::uint64_t expected,
                                                 std::uint64_t value) {
    return atomicCAS(reinterpret_cast<unsigned long long*>(word), expected, value);
  }

  /// The value, hidden from the compiler's knowledge that it is constant: the compiler computes
  /// derived values again instead of keeping them in registers.
  __device__ static unsigned computed_here(unsigned value) {
    asm volatile("" : "+r"(value));
    return value;
  }

  /// 2^x, relative error 2^-22; results below 2^-126 are 0.
  __device__ static float exp2(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }

  /// Two elements in a register, the first in the lower half, rounded to nearest even.
  template <class T>
  __device__ static std::uint32_t pack(float first, float second) {
    return narrow_two<T>(first, second);
  }

  /// Writes two elements to shared memory, at a multiple of 4 bytes.
  __device__ void store_pair(unsigned offset, std::uint32_t pair) const {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared_ + offset), "r"(pair) : "memory");
  }
  /// Reads 4 bytes of shared memory.
  __device__ std::uint32_t load_word(unsigned offset) const {
    std::uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(shared_ + offset) : "memory");
    return word;
  }
  /// Copies 16 bytes from shared to global memory.
  __device__ void copy_chunk(void* global, unsigned offset) const {
    *static_cast<uint4*>(global) = load_words(offset);
  }

  /// Reads 16 bytes of shared memory.
  template <class Chunk>
  __device__ Chunk load_chunk(unsigned offset) const {
    static_assert(sizeof(Chunk) == 16);
    const uint4 words = load_words(offset);
    Chunk chunk;
    __builtin_memcpy(&chunk, &words, sizeof(chunk));
    return chunk;
  }

  /// Begins to copy 16 bytes from global to shared memory, or to clear them where not `live`. The
  /// copies since the last commit() are one group.
  __device__ void copy_async(unsigned offset, const void* global, bool live) const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_ + offset),
                 "l"(global), "r"(live ? 16 : 0)
                 : "memory");
#else
    unsupported();
#endif
  }
  __device__ static void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  /// Waits until at most `Pending` groups of this thread are in flight.
  template <int Pending>
  __device__ static void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
  }

  /// Four matrices of 8 × 8 from the rows that the lanes give (see a_source()).
  __device__ void load_matrices(std::uint32_t (&registers)[4], unsigned offset) const {
    KATT_LDMATRIX("");
  }
  /// The same, each matrix transposed.
  __device__ void load_matrices_transposed(std::uint32_t (&registers)[4], unsigned offset) const {
    KATT_LDMATRIX(".trans");
  }

  /// C += A·B with A 16 × 16, B 16 × 8, both of T, and C in f32.
  template <class T>
  __device__ static void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, f16>) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
          "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
          "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
#else
    unsupported();
#endif
  }

 protected:
  /// Variants that need later devices are refused on the host.
  __device__ static void unsupported() { __trap(); }

  __device__ uint4 load_words(unsigned offset) const {
    uint4 words;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(shared_ + offset)
                 : "memory");
    return words;
  }

  std::uint32_t shared_;
};

}  // namespace katt::tile

#undef KATT_LDMATRIX

#endif
