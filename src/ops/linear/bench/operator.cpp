#include "op/tensor_operator.hpp"
#include "ops/linear/bench/description.hpp"

KATT_REGISTER_OPERATOR(linear)
