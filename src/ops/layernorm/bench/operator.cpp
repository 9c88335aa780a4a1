#include "op/tensor_operator.hpp"
#include "ops/layernorm/bench/description.hpp"

KATT_REGISTER_OPERATOR(layernorm)
