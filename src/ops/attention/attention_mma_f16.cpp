#include "ops/attention/attention_mma_cuda.hpp"

#if defined(KATT_HAS_CUDA)
KATT_INSTANTIATE_MMA(katt::f16)
#endif
