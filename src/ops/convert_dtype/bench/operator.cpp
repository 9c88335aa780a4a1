#include "op/description/describe.hpp"
#include "ops/convert_dtype/bench/description.hpp"

KATT_REGISTER_OPERATOR(convert_dtype)
