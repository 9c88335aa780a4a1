#include "ops/attention/tensor_cores/wgmma_cuda.hpp"

#if defined(KATT_HAS_CUDA)
KATT_INSTANTIATE_WGMMA(katt::f16)
KATT_INSTANTIATE_WGMMA(katt::bf16)
#endif
