#include "ops/attention/tensor_cores/mma_backward_cuda.hpp"

#if defined(KATT_HAS_CUDA)
KATT_INSTANTIATE_MMA_BACKWARD(katt::f16)
KATT_INSTANTIATE_MMA_BACKWARD(katt::bf16)
#endif
