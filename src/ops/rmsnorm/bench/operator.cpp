#include "op/tensor_operator.hpp"
#include "ops/rmsnorm/bench/description.hpp"

KATT_REGISTER_OPERATOR(rmsnorm)
