#include "op/tensor_operator.hpp"
#include "ops/swiglu/bench/description.hpp"

KATT_REGISTER_OPERATOR(swiglu)
