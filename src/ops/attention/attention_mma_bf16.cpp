#include "ops/attention/attention_mma_cuda.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
KATT_INSTANTIATE_MMA(katt::bf16)
#endif
