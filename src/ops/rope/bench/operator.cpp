#include "op/tensor_operator.hpp"
#include "ops/rope/bench/description.hpp"

KATT_REGISTER_OPERATOR(rope)
