#pragma once

/// KATT_INLINE_FUNCTION equals KOKKOS_INLINE_FUNCTION, for headers that include no Kokkos. A source
/// without Kokkos compiles faster, and in a CUDA build the host compiler compiles it.
#if defined(__CUDACC__)
#define KATT_INLINE_FUNCTION inline __host__ __device__
#else
#define KATT_INLINE_FUNCTION inline
#endif
