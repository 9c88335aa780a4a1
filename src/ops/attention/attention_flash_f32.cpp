#include "ops/attention/attention_flash_kernel.hpp"

KATT_FOR_EACH_EXEC(KATT_INSTANTIATE_FLASH, float)
