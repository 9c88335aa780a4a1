#include "ops/attention/portable/forward_kernel.hpp"

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH, float)
