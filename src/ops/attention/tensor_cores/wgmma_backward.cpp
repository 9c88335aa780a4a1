#include "ops/attention/tensor_cores/wgmma_backward_cuda.hpp"

#if defined(KATT_HAS_CUDA)
KATT_INSTANTIATE_WGMMA_BACKWARD(katt::f16)
KATT_INSTANTIATE_WGMMA_BACKWARD(katt::bf16)
#endif
