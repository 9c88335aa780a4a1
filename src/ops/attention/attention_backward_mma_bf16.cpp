#include "ops/attention/attention_backward_mma_cuda.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
KATT_INSTANTIATE_MMA_BACKWARD(katt::bf16)
#endif
