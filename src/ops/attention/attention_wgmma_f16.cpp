#include "ops/attention/attention_wgmma_cuda.hpp"

#if defined(KATT_HAS_CUDA)
KATT_INSTANTIATE_WGMMA(katt::f16)
#endif
