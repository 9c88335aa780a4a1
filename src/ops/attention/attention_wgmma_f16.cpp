#include "ops/attention/attention_wgmma_cuda.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
KATT_INSTANTIATE_WGMMA(katt::f16)
#endif
