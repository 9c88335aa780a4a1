#include "op/description/describe.hpp"
#include "ops/swiglu/bench/description.hpp"

KATT_REGISTER_OPERATOR(swiglu)
