#include "ops/attention/tensor_cores/mma_cuda.hpp"

#if defined(KATT_HAS_CUDA)
KATT_INSTANTIATE_MMA(katt::f16)
KATT_INSTANTIATE_MMA(katt::bf16)
#endif
