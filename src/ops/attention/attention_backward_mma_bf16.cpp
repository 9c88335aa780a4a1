#include "ops/attention/attention_backward_mma_cuda.hpp"

#if defined(KATT_HAS_CUDA)
KATT_INSTANTIATE_MMA_BACKWARD(katt::bf16)
#endif
