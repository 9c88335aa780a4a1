#pragma once

/// KATT_INLINE_FUNCTION: what KOKKOS_INLINE_FUNCTION is, for headers that include no Kokkos. A
/// source that reaches none is spared parsing it, and in a CUDA build it is compiled by the host
/// compiler.
#if defined(__CUDACC__)
#define KATT_INLINE_FUNCTION inline __host__ __device__
#else
#define KATT_INLINE_FUNCTION inline
#endif
